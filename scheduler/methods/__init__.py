"""What does each method make of a fleet?

`methods`       every method behind one function
`baselines`     layers by memory, equal parts
`outcome`       chains, tokens a second and milliseconds a token of a plan
`explain_plan`  what binds a plan, and what each machine is worth to it
`explain`       why a pipeline is as fast as it is
"""
