"""How a lie is proven: measured by the auditor, traced by both sides, judged on one value.

`registration/`  whether a T can be promised for a model's weights
`judging/`       how far an honest machine may be from the exact answer
`play/`          the trace of a real shard, and the moves of the two sides
`kernels/`       what traces take most time for, in C, on all cores
`game/`          whose move it is, and what the chain knows of a game
`trace/`         what a trace is, how it is committed, opened and judged
`referee/`       whether one value of a trace is right, in integers alone

The last two are the twins of contracts and need neither numpy nor torch.
"""
