"""How is a plan measured?

`traces`       the requests that are served
`filled`       a plan with every machine in use and every slice as wide as fits
`entries`      the fewest stages that a request visits under a flow
`token_steps`  decode steps alone, on chosen chains
`events`       one event in the life of a fleet, decided upon at once
`miner_line`        stages that queue as miners do
`miner_simulation`  the simulator over such stages
`replay`       a replica of a placed model, iteration by iteration
`fit`          the cost of a stage's passes, from passes that were measured
"""
