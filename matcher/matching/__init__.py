"""A signed order as a job on chain.

`matching`   the steps: check, route, propose, open
`orders`     whether an order may be matched here, and if not, why not
`registered`  orders that requesters opened on chain themselves, and that wait there
`proposing`  whether the machines take their places, asked of all at once
"""
