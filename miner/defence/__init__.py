"""How a miner answers a dispute.

`defence`      its moves in the tolerance game, each within its clock
`longest`      the longest request that a machine can defend
`shown_trace`  the accuser's trace, compared with the miner's own
"""
