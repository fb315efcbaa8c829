"""How is the cheapest chain found exactly in microseconds: τ tables, factored hops, bounds, sweeps,
live updates?
"""
