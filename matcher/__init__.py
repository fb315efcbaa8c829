"""The matcher: plans layers, finds the chain for each order, opens and settles jobs.

`cli`        the `matcher` program
`commands/`  what its longer commands do
`daemon/`    the running matcher: its loop, start and end
`world`      what the daemon knows right now
`fleet/`     which machines are there, and what each may be given
`planning/`  who should hold which layers
`api/`       the HTTP API
`matching/`  a signed order as a job on chain
`routes/`    which chain of machines answers an order now
`settling/`  a job brought to its end
`audits/`    the audits that a matcher pays for or goes by
`records/`   the database of the matcher

It holds no money of others and sees no prompt.
"""
