"""The thread that owns the engine, and what it serves next.

`compute`   requests in, batches, results out
`memory`    pages promised to requests, so that none runs out of them
`prefixes`  chunks of prompts that were computed before
`stepper`   one batch through the engine, and what comes out for each request
`pace`      how long steps take here and after, how many microbatches and guesses follow
`numerics`  a model is computed in what it is registered with, or not at all
`tiers`     how much of the keys and values may lie outside hot memory
"""
