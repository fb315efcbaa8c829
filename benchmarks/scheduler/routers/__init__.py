"""Other systems' ways of choosing machines for a request, which rows compare ours with.

`hop_router`   what they do alike: one hop at a time, or a whole path, over the hops there are
`stepwise`     the simulator, with a router that may choose when a prompt leaves a machine
`chance`       any next machine, or the one where the fewest steps wait (Helix §6.7)
`swarm`        the next machine in inverse proportion to its times (SWARM)
`petals`       the path that looks quickest to a client (Petals)
`others`       what those of Helix §6.7 and Petals' serve on one placement
`fixed`        pipelines that never change (Parallax's default)
"""
