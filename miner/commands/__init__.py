"""What each command of the miner does.

`results`       the types that commands return and `--json` prints
`init`          a machine becomes a miner's, and its settings change
`doctor`        what a miner needs, and what is missing
`bench`         the speed of this machine, by steps of the engine
`quote`         what this machine must earn, and whether it does
`market`        the matcher's view of models, machines and jobs
`reach`         how others reach this machine, and where the swarm is
`registration`  stake, operator and withdrawal on the chain
`listing`       what the chain says of this machine
`facts`         what is known about this miner, by itself and by others
`why`           the reasons for which this miner gets no work
`live_view`     a running miner on the screen
`earnings`      income and losses, by job, day and model
`accusations`   disputes against this miner, and their answers
"""
