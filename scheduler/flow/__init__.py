"""How much flow does a placement pass, and what does no placement exceed?

`flow_graph`     the network of a placement (Helix §4.3)
`arc_flow`       the largest flow over its arcs, and the cheapest
`max_flow`       tokens a second of a placement, and over which links
`min_cuts`       the machines and links that hold a flow back
`flow_lp`        the flow when a machine may serve any part of its slice
`interval_flow`  the same over segments, and who serves what
`bounds`         what no placement exceeds
`valid`          whether shards may be a placement
"""
