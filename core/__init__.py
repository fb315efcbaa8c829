"""What several roles share byte for byte.

`protocol/`  what is signed, committed and sent, and what can go wrong
`keys/`      where keys live, and what signs with them
`chain/`     the chain as one object
`money/`     prices, spenders, and who pays for audits
`runtime/`   what every program needs: settings, logs, network, commands
`batching/`  which waiting steps a stage computes next
`engine/`    tokens into activations and activations into tokens
`dispute/`   how a lie is proven: the trace, the game, the referee
`models/`    a model's life between strangers: published, pulled, held to the chain
`networks/`  a network's life between strangers: deployed, proved, joined, administered
"""
