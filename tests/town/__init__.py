"""The test world in one process: what a test needs of it, it puts together from these.

`orders`     keys, a small model, and what requester and stages sign over it
`chain`      the contracts as dictionaries, and the blocks that their events stand in
`stages`     three stages of one job that play a script over real streams
`machines`   real miners on loopback, with a tiny model, which can be killed and frozen
`requester`  a requester that speaks to every stage of a job itself, frame by frame
`proposing`  how stages of a plan are asked whether they take an order
`town`       machines, a matcher and the real client, which runs batches
`village`    a town whose requester asks single requests over sessions
`fleet`      what machines say to a matcher: records, a swarm and stages in memory
`matcher`    a real matcher daemon over such a fleet
`wallets`    a home with wallets of accounts that have money
"""
