"""What the commands of `client` and `auditor` do, and what they print.

`wallet/`   keys and money
`ask/`      what a requester asks for, and what became of it
`publish/`  what a publisher brings to the network
`judge/`    what an auditor and a juror do
"""
