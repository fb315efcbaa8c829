"""What it takes to bring a model, and to fetch a part of one: `python -m benchmarks.models`.

`random_llama`  a random model of a size, written once
`publishing`    hashing all of it, beside sha256sum
`pulling`       the bytes that a machine with a part of the layers fetches
`loading`       loading with each tensor held to its root, beside loading without
`packers`       a model written in the formats that people publish
`packed`        memory of such a model, and its cuts
`depths`        lies and honest work in stages of any number of layers
"""
