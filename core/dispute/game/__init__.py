"""Whose move it is in a tolerance game, and what the chain knows of it.

`dispute`   the phases of a dispute, whose turn is in each, and how it ends
`game_log`  where a game stands, read from the chain alone
"""
