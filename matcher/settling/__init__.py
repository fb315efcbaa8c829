"""A job brought to its end.

`following`   what the chain's events change in what the matcher knows
`next_step`   what must be done next about a job, and whether what was signed is enough
`settler`     each job moved on by its next step, also where a party fell silent
"""
