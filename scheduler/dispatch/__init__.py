"""Which machines answer this request? One answer per method, all behind `router.Router`.

router.py     what every method promises, and the route it returns
topology.py   which hops a placement allows, with the flow on each
estimate.py   how much KV cache the running requests will need
iwrr.py       Helix's interleaved weighted round robin on the flow
swarm.py      SWARM's moving averages
per_hop.py    random and shortest queue, chosen as the prompt travels
greedy.py     the quickest path by estimate, as Petals picks it
fixed.py      fixed pipelines in turn or by weight
"""
