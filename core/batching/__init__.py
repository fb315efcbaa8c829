"""Which waiting steps a stage computes next: shared by a real stage and a simulated one.

`step`          what waits in front of a stage
`lineup`        who waits in front of a stage, and which steps its next batch takes
`kv_ledger`     whose KV pages are in use, and whether there is room for more
`tickets`       which requests' next steps leave a first stage together
`ring`          how many microbatches of what size keep a ring busy (DeServe §4.3)
`batch_former`  which waiting steps make the next batch
`chunks`        where prompts are cut, the same on every machine
`times`         how long a stage takes for a batch, as far as has been measured

Pure state machines: no clock, no tensors, no I/O. A request is any hashable handle, a job any
hashable name.
"""

from core.batching.batch_former import BatchFormer, StepBatch
from core.batching.kv_ledger import KvLedger, LedgerError
from core.batching.lineup import Lineup
from core.batching.ring import choose
from core.batching.step import RequestStep, StepError
from core.batching.tickets import Tickets
from core.batching.times import StepTimes

__all__ = [
    "StepBatch",
    "BatchFormer",
    "KvLedger",
    "LedgerError",
    "Lineup",
    "RequestStep",
    "StepError",
    "StepTimes",
    "Tickets",
    "choose",
]
