"""What an auditor and a juror do.

`verdicts`          `auditor check` and `auditor dispute`: the table of stages, the accusation
`convict`           `auditor convict`: stages that their own signed words convict
`play_dispute`      a dispute in the tolerance game: charge, bond, every move, the verdict
`move_dispute`      `auditor disputes move`, `resolve` and `claim`: the same step by step, by hand
`show_dispute`      `auditor disputes show`: a dispute move by move, with the number on trial
`dispute_results`   what the commands about disputes print
`replay`            `auditor replay`: whether a job's tokens follow from its prompts
`bundle`            `auditor bundle` and `auditor verify`: a job in one file for a third party
`canaries`          requests with a known honest answer, mixed among others
`watch_service`     `auditor watch`: the watching auditor with its connections and metrics
`jury_stake`        the stake of a juror: put in, looked at, taken out
`jury_service`      `auditor jury serve`: the juror's daemon with its connections and metrics
"""
