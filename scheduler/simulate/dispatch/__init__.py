"""Which machines answer a request of a measured cluster?

`router`    what a router promises
`topology`  the hops that a placement allows
`turns`     weighted round robin at every vertex of a flow (Helix §5.1)
`iwrr`      the router of these turns, with a mask at the high-water mark
`estimate`  the KV cache that running requests will need (§5.2)
"""
