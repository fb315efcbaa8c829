"""Attacks by strangers, and calls that somebody might make, held against what is promised.

`crafted_rows.json`  rows that the layers of a tiny model cancel, by family
`test_evidence`      lies that a stage's own signed words show, and honest stages that none shows
`test_crafted_rows`  rows chosen so that honest rounding looks like a lie convict nobody
`model`              jobs, their money and guilt in Python, written from `docs/protocol.md` alone
`accounts`           the same of balances, stakes, slashes and who can work
`books`              what the model keeps, as getters tell it, and how it refuses
`calls`              random calls: every actor, amount and time that decides something, one beside
`lockstep`           model and contracts side by side on a local chain, compared after every call
`mutants`            faults put into the contracts at random, and who notices them
`test_lockstep`      some hundred calls
"""
