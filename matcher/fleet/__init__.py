"""Which machines are there, and what each may be given.

`fleet_view`  the records of the swarm: which machines, in whose name
`exclusions`  who is left out, and who comes last (`docs/trust.md` §9)
`shapes`      what a model weighs, by its specification on chain alone
"""
