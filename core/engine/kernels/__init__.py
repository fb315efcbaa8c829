"""Products of a step, as fast as memory gives the weights.

`lookup`        rows of the embedding, read from its file
`layouts`       the orders in which a weight can lie, and what multiplies by each
`prepack`       linear layers, laid out once so that any batch gives the same bits
`plain_layers`  a run of layers of the llama kind in one call
`head`          norm and head of the last rows, a few rows at a time
"""
