"""Python beside the contracts: every move, leaf and payment in both, and compared.

`game/`                 the game of the contracts in Python, and players of it on toy models
`dispute_chain`         a game on a local chain, each move made in both twins
`test_dispute`          whole games: the same phase, clock, node and verdict after every move
`test_dispute_tokens`   games about served tokens
`test_dispute_pleas`    games in which the accused pleads
`dispute_gas`           what every move costs on models of three sizes
`test_dispute_gas`      that it is what the snapshot says
`referee_chain`         the contract's referee on a local chain
`referee_cases`         random leaves: honest, one bit off, and absurd
`referee_vectors`       both referees on as many leaves as asked
`test_referee`          both referees on some thousands of each kind
`make_vectors`          vectors that the Solidity tests read
`test_vectors`          that they are not stale
`test_session_chain`    a session's payments
"""
