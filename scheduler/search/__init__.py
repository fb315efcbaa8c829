"""Which layers does every machine hold, so that one model over slow and fast machines serves the
most?

Max flow alone picks pipelines that serve less, so a plan is made in two steps: `candidates` gathers
placements of different depth (chain search, compact MILP, stage patterns, the heuristics of
others), `rank` simulates the best of them on the real work and chooses by goodput under latency
limits.
"""
