"""Helix as printed (Mei et al., ASPLOS 2025), and the placements that it is compared with.

`planner`     heuristics, pruning and program together
`swarm`       SWARM's placement
`petals`      Petals'
`separate`    pipelines of one kind of machine each
`pruning`     fewer links (§4.5)
`milp_model`  the program of §4.4, variable by variable
`milp`        the program solved by HiGHS, from a warm start, to a bound
"""
