"""What do an engine's stage and a simulated one share? The KV ledger and the batch former.

Pure state machines: no clock, no tensors, no I/O. A request is any hashable handle, a job any hashable name.
"""

from core.batching.batch_former import Batch, BatchFormer
from core.batching.kv_ledger import KvLedger, LedgerError
from core.batching.lineup import Lineup
from core.batching.ring import choose
from core.batching.step import Step, StepError
from core.batching.tickets import Tickets
from core.batching.times import StepTimes

__all__ = [
    "Batch",
    "BatchFormer",
    "KvLedger",
    "LedgerError",
    "Lineup",
    "Step",
    "StepError",
    "StepTimes",
    "Tickets",
    "choose",
]
