"""Where the values of the pages come from.

`sources`    everything that pages read: matcher, chain, chain log, the gateway's records
`chain_log`  the chain's events in one SQLite file, looked up by job, address or block
`history`    days of the network and what its machines earned, out of that file
`uptime`     how much of the time machines and models were there, as this gateway saw it
`cached`     a value kept for a moment, with the time at which it was true
"""
