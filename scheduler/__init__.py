"""Who holds which layers, and which chain answers a request: pure planning, same input, same plan.

Symbols are the papers': L layers, N machines, c_i layer capacity, F_i compute rate, k pipelines
(replicas), s*(k) fewest stages, Z(k) score, τ(g, ℓ) time of one layer, ρ(g, g′) one-way latency.

`live/`      a fleet in service: who is told what when machines come, go and slow down
`methods/`   every planning method by name, and why a plan is as it is
`utility/`   the plan of the product: throughput and latency together
`parallax/`  phase 1 by Parallax's score
`covering/`  whole numbers of patterns within a supply, which both of these choose
`search/`    placements of measured clusters, ranked by what they serve
`stages/`    how chains of shared stages are made and improved, which the search uses
`helix/`     Helix's program, and the placements that it is compared with
`fabric/`    several models over GPU types (LLMFabric)
`routing/`   the chain of one request over what is placed (phase 2)
`flow/`      how much flow a placement passes, and what no placement exceeds
`simulate/`  what a placement with a router would serve
`fleet/`     machines, links, models and what they cost: what all of these start from
"""
