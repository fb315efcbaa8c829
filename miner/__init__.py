"""The worker: it holds some layers of a model and is paid for what it computes with them.

`cli`        the command line
`commands/`  the commands: each asks, acts and returns what is printed
`daemon/`    the running miner: swarm, assignment, loops from start to end
`serving/`   jobs and requests: messages in, rows or tokens out, receipts
`compute/`   the thread that owns the engine
`chain/`     what the chain is asked, and which jobs are taken
`defence/`   moves in a dispute
`records/`   the database, the home folder, the machine's facts, the metrics
"""
