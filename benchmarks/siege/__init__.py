"""What do honest clients notice while strangers attack?

`__main__`    the table, over one devnet for all parts
`besieged`    the devnet: three miners, a matcher, a gateway and keys for four clients
`honest`      the clients, and what they had in some seconds
`actor`       a process of an attacker, from a word to a word, and its processor seconds
`idle`        an attacker that computes as much and talks to nobody
`measuring`   an attack, then an idle one of its size, and the rows of both
`ordering`    orders of a wallet with a deposit
`strangers`   streams of keys that nobody knows
`cancels`     requests cut just before their end, and what was had without paying
`unopened`    orders that are matched and never opened
`junk`        proposals and stage messages of a stranger
`streams`     hundreds of streams to a miner
`frames`      the largest frames, many at once
`records`     forged records in the swarm, and an honest peer that joins meanwhile
`shown`       nodes of traces that nobody disputes
`bodies`      long prompts and bodies that are too large
`uploads`     uploads that never end
`batches`     batches of a key with a small rate
`loris`       connections that send a byte at a time
`plans`       deep and huge JSON for the planner
"""
