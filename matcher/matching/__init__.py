"""A signed order as a job on chain.

`matching`   the steps: check, route, propose, open
`orders`     whether an order may be matched here, and if not, why not
`proposing`  whether the machines take their places, asked of all at once
"""
