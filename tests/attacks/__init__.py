"""Calls that somebody might make to the contracts, held against what the document promises.

`model`           balances, states and refusals in Python, written from `docs/protocol.md` alone
`calls`           random calls: every actor, amount and time that decides something, and one beside
`lockstep`        model and contracts side by side on a local chain, compared after every call
`test_lockstep`   some hundred calls
"""
