"""One step of many requests at different positions, through the layers of one shard.

`compat`          which engine a shard gets, and the slow one for layers that cannot share pages
`batch`           the engine that batches
`learned_layout`  what each layer keeps of a token, learned by running it
`pieces`          what a request brings to a step, and what is wrong with it
`plan`            the pages that each row of a step writes and reads
`graphs`          steps that a graphics processor runs by one launch
`determinism`     proof that other rows of a step change no bit
`whole`           an auditor's pass over all rows of one request
"""
