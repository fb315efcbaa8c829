"""Which chain answers a request? Exact, within microseconds where little has changed.

`live`            the best chain while load, τ and KV room change
`query`           what one request asks, and what each machine costs it
`routing_table`   what is prepared once for each placement
`paces`           τ of each machine at its own batch
`hops`            what hops cost, and what they cost at least
`sweep`           the least cost to every machine at every boundary
`bounds`          the states that can lie on a chain no dearer than this
`layout`          the few states that matter, and the best chain over them
`partial`         the best chain that may enter shards at any layer
`whole`           the best chain of whole shards
`parallax_route`  one question, and backups that share no machine (phase 2, §3.3)
`bridge`          machines for a part of a chain whose others stay
`reservations`    who has been promised what of each machine
"""
