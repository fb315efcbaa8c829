"""What the chain says to a miner.

`onchain`    state of jobs, stake and models, and what holds while the chain is silent
`admission`  whether this miner takes part in a proposed job
"""
