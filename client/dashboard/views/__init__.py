"""The values of each page, as its template reads them.

`common`    what several pages show: a machine, a paid request, a pipeline
`overview`  the first page: the network, the money, what runs, what went wrong
`activity`  tokens a second and time to the first token over the last minutes
`models`    what is on offer: price, speed, identity, machines
`network`   chains over layers, machines and their links, one machine's own page
`planner`   plans of several methods beside each other
`connect`   how OpenAI programs use this gateway
`keys`      API keys, their budgets and the days on which they were used
`wallet`    where the money is, what holds it, every movement
`jobs`      jobs and receipts: how far, what it cost, who signed
`receipts`  the receipt of a paid request, and what a stage signed for it
`disputes`  who accuses whom of what, how far it is, every move
`history`   the network day by day, and its machines beside each other
`earnings`  what a miner's owner earned, and from which rate on a machine pays
`meaning`   what each event of the contracts means, in a sentence
`explorer`  the chain as this network uses it: events, ids, the contracts' rules
"""
