"""The test world in one process.

`orders`  keys, a small model, and what requester and stages sign over it
`chain`   the contracts as dictionaries, and the blocks that their events stand in
`stages`  three stages of one job that play a script over real streams
"""
