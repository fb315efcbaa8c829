"""Helix as printed (Mei et al., ASPLOS 2025), and the placements it is compared with.

flow_graph.py     the network of a placement (§4.3)
max_flow.py       its maximum flow, and the one of least latency among them
preflow_push.py   the algorithm of the first; min_cost_flow.py and min_cost_lp.py of the second
bounds.py         what no placement exceeds
milp_model.py     the program of §4.4, variable by variable
milp.py           the program solved by HiGHS, from a warm start, to a bound
pruning.py        fewer links (§4.5)
planner.py        heuristics, pruning and program together
swarm.py, petals.py, separate.py   the heuristics
valid.py          what a placement may be
"""
