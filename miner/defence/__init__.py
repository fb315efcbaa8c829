"""How a miner answers a dispute.

`defence`      its moves in the tolerance game, each within its clock
`shown_trace`  the accuser's trace, compared with the miner's own
"""
