"""Is the scheduler where it must be? `python -m benchmarks.scheduler` prints the whole table.

`__main__`      the parts of the table, in order
`worlds`        the clusters, fleets and models that all of them are measured on
`score`         Parallax's score, to a proven optimum, from 4 to 10,000 machines
`utility`       the utility plan: time, throughput, stages a request visits
`helix_flow`    the largest flow over Helix's three clusters
`helix_served`  what placements and routers serve on them in simulation
`simulator`     the simulator's speed, and other simulators' figures
`validation`    the simulator against the running engine
`fabric`        several models over GPU types, on LLMFabric's example
`routing`       one exact route, and backups
`load`          requests over 64 machines at 60 % of their bound
`methods`       the default and the papers' methods on the same fleets
`loss`          what is left when a tenth of the machines vanish
`robustness`    fuzzed fleets and streams of events
`pictures`      drawings of every method's plan; no part of the table
`peers/`        what published systems do and print, where rows compare with it
`routers/`      other systems' ways of choosing machines for a request
`measure/`      how plans are measured: traces, replays, fits
"""
