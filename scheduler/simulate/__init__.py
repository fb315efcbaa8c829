"""How would a placement with a router serve a workload?

simulation.py  the event loop; `simulate` is the entry
coordinator.py admission, tokens coming home, machines coming and going
world.py       workers, links and requests in flight
options.py     what is simulated, and for how long
work.py        where requests come from: a trace, or a feed that keeps the KV caches filled
traces.py      traces: CSV text, synthetic Poisson and bursty arrivals
miner_line.py  queues as miners keep them
pass_cost.py   how long a pass takes
fit.py         a cost model fitted to measured passes
histogram.py   latencies in bounded memory
report.py      what comes out
"""

from scheduler.simulate.options import Change, SimOptions
from scheduler.simulate.report import SimReport
from scheduler.simulate.simulation import simulate
from scheduler.simulate.work import ClosedLoop

__all__ = ["Change", "ClosedLoop", "SimOptions", "SimReport", "simulate"]
