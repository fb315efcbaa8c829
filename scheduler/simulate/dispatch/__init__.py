"""Which machines answer a request of a measured cluster?

`router`    what a router promises
`topology`  the hops that a placement allows
`iwrr`      round robin over a flow (Helix §5.1)
`estimate`  the KV cache that running requests will need (§5.2)
"""
