"""Whose move it is in a tolerance game, and what the chain knows of it.

`game_log`  where a game stands, read from the chain alone
`dispute`   the rules: whose move, which moves, who pays in the end (`docs/trust.md` §3)
"""
