"""Who holds which layers, and which chain answers a request: pure planning, same input, same plan.

Symbols are the papers': L layers, N machines, c_i layer capacity, F_i compute rate, k pipelines
(replicas), s*(k) fewest stages, Z(k) score, τ(g, ℓ) time of one layer, ρ(g, g′) one-way latency.
The entry points are `scheduler.parallax.allocate.allocate` (phase 1) and `scheduler.routing.parallax_route.route`
(phase 2).
"""
