"""A network's life: deployed by its owner, proved by strangers, joined, administered.

`parameters`  which parameters the contracts take, by number, and the presets
`plan`        what a deployment will create, where, with which arguments
`deploying`   the contracts created one after the other, from where it was left
`code`        whether what is at an address is the contract that was compiled
`token`       whether an ERC-20 moves exactly what it is told to move
`checking`    whether a chain agrees with a network file, point by point
`joining`     a file from a stranger, and the networks that are known here
`reaching`    a file and a chain reached, and what is asked before a network is kept
`commands`    the same as commands of every program that works on a network
"""
