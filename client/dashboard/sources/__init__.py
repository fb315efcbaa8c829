"""Where the values of the pages come from.

`sources`    everything that pages read: matcher, chain, chain log, the gateway's records
`chain_log`  the chain's events in one SQLite file, looked up by job, address or block
`cached`     a value kept for a moment, with the time at which it was true
"""
