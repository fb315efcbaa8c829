"""The chain as one object.

`chain`      what roles ask of it: reads, events, transactions, and the values that these are
`agreement`  what several nodes say, one of which may lie, lag or be silent
`endpoints`  several nodes, asked as if they were one
`provider`   how a node is asked, which may send what it likes
`node`       a node and its errors; with the two above and `rpc` all that has web3
`fees`       what is bid for gas, and when more is bid
`outbox`     what was signed and may have been sent, before a program ended
`sending`    transactions of accounts, from their price to their block
`artifacts`  what the contracts' artifacts say
`rpc`        the chain by a node: calls, events, transactions
`earned`     what of an owner's pay was not collected yet
`machines`   which machines the registry lists for an owner
`staked`     which operators have stake, and which machines, by the registry's events alone
`follower`   events since the last look, across reorganisations and restarted nodes
"""
