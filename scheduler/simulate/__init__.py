"""How would a placement with a router serve a workload?

simulation.py  the event loop; `simulate` is the entry
coordinator.py admission, tokens coming home, machines coming and going
world.py       workers, links and requests in flight
options.py     what is simulated, and for how long
work.py        where requests come from: a trace, or a feed that keeps the KV caches filled
traces.py      synthetic traces
miner_line.py  queues as miners keep them
pass_cost.py   how long a pass takes
histogram.py   latencies in bounded memory
report.py      what comes out
"""
