"""Which layers does each machine hold, so that slow and fast ones together serve the most?

Max flow alone picks pipelines that serve less: candidates are gathered, and ranked in simulation.

`serve_plan`    the placement and the flow that serve a workload best
`rank`          candidates simulated, and ranked by goodput within limits
`even_flow`     the flow that uses machines, caches and links evenly
`candidates`    placements of different depth that are worth simulating
`candidate`     a placement and what it could pass
`plan_flow`     the largest flow that can be found in time
`chain_search`  chains that pass the most, by many short runs
`starts`        the chains that a run starts from
`anneal`        one run over several chains
`aim`           one run for a single chain that must pass a given flow
`trial`          of a few plans of pipelines, the one that serves most as the matcher routes
`fastest_route`  the matcher's own routing, for the simulator
"""
