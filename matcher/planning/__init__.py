"""Who should hold which layers.

`planner`      what the swarm shows as the planner takes it, and its answer
`allocating`   which machines are told what to hold, and when again
`planning`     `POST /v1/plan`: what the scheduler would do with a fleet
`plan_child`   the process of its own that plans for one question
`plan_file`    a fleet that exists only in a file
`trace_file`   requests of the built-in trace or of a file
`simulated`    what each method's plan would serve of them
`pictures`     plans and what they served, drawn
`models_file`  several models and GPU types that exist only in a file
"""
