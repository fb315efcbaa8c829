"""The chain as one object.

`chain`     what roles ask of it: reads, events, transactions, and the values that these are
`provider`  how a node is asked, which may send what it likes
`rpc`       a node that answers: sends in nonce order, decodes; with `provider` all that has web3
`earned`    what of an owner's pay was not collected yet
`machines`  which machines the registry lists for an owner
`staked`    which operators have stake, by the registry's events alone
`follower`  events since the last look, across reorganisations and restarted nodes
"""
