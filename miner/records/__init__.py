"""What a miner keeps, and what it counts.

`home`     the folder of one miner, and the daemon that uses it
`machine`  memory, processors and disk of this machine
`store`    the database: what was accepted, done and signed
`metrics`  counters and gauges, under their names
"""
