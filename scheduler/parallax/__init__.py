"""Which machine holds which layers, by the score of Parallax (phase 1)?

`allocate`           from a fleet to validated pipelines, region by region
`objective`          the constants of Z(k) for these machines
`parallax_allocate`  the dynamic programme as printed (§3.2)
`column_generation`  the same score for any number of machines, with a proof
`pricing`            the pattern that is cheapest at given prices
`greedy_cover`       what can be had without a solver
`assemble`           machines and layers for the patterns that were chosen
"""
