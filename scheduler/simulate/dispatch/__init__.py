"""Which machines answer this request of a measured cluster?

router.py     what a router promises, and the route it returns
topology.py   which hops a placement allows
estimate.py   how much KV cache the running requests will need
iwrr.py       Helix's interleaved weighted round robin on the flow
"""
