"""The running miner, from start to end.

`daemon`       all loops, and the order in which they start and stop
`assignment`   the layers that this miner is told to hold, loaded and changed
`arranging`    the layers that machines give each other where no matcher does
`announce`     this miner's records in the swarm, and distances to the others
`link_speeds`  how fast other machines take bytes from this one
`swarm_places` which machines of the swarm may send us files of our model
`stake_watch`  what the owner should hear of stake and credits
`claims`       what the miner itself brings on chain, work or acknowledgement, and jobs that it ends
`status`       the page that tells the owner, on this machine only
"""
