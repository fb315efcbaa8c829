"""One request of the gateway, from its body to its last byte.

`answers`    reserve, ask, write, charge, and keep what a retry is told
`responses`  one connection that follows an answer: head, events, pings, leaving
`receipts`   what was charged for a request, and what every stage signed for it
"""
