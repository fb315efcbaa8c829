"""Calls that somebody might make to the contracts, held against what the document promises.

`model`           jobs and their money in Python, written from `docs/protocol.md` alone
`accounts`        the same of balances, stakes and who can work
`books`           what the model keeps, as getters tell it, and how it refuses
`calls`           random calls: every actor, amount and time that decides something, and one beside
`lockstep`        model and contracts side by side on a local chain, compared after every call
`test_lockstep`   some hundred calls
"""
