"""Which machines are there, and what each may be given.

`fleet_view`  the records of the swarm: which machines, in whose name
`links`       distances and speeds between them, by the word of both ends
`regions`     where each is, by what it says and what others measure
`exclusions`  who is left out, and who comes last (`docs/trust.md` §9)
`shapes`      what a model weighs, by its specification on chain alone
"""
