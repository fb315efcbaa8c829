"""What the model keeps, as the contracts' getters tell it, and how it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from core.protocol import types as t

NOBODY = t.ZERO_ADDRESS


class Refused(Exception):
    """The call changes nothing. `broken`: each broken rule's error, its name and its arguments."""

    def __init__(self, broken: list[tuple[Any, ...]]) -> None:
        super().__init__(broken)
        self.broken = broken


@contextmanager
def rules() -> Iterator[Callable[..., None]]:
    """What all has to hold: `need(holds, error, arguments…)`; the end raises Refused."""
    broken: list[tuple[Any, ...]] = []

    def need(holds: bool, *error: Any) -> None:
        if not holds:
            broken.append(error)

    yield need
    if broken:
        raise Refused(broken)


class MinerState(IntEnum):
    NONE = 0
    ACTIVE = 1
    COOLDOWN = 2
    EXITED = 3


@dataclass
class Miner:
    """`minerOf`. Machines decide nothing."""

    operator: str = NOBODY
    stake: int = 0
    leaving: int = 0
    leave_at: int = 0
    jail_until: int = 0
    open_disputes: int = 0
    machines: int = 0
    strikes: int = 0
    state: MinerState = MinerState.NONE


@dataclass
class Dispute:
    """`disputeOf`: by whom it may be closed, what was at stake, and what it may claim."""

    arbitrator: str = NOBODY
    at_stake: int = 0
    challenger: str = NOBODY
    to_challenger: int = 0
    victim: str = NOBODY
    to_victim: int = 0


@dataclass
class Pool:
    """`poolOf`."""

    units: int = 0
    opened: int = 0
    served: int = 0


@dataclass
class Spender:
    """`spenderOf`."""

    limit: int = 0  # units
    used: int = 0  # nano units
    expiry: int = 0


@dataclass
class Job:
    """`jobOf`."""

    deadline: int = 0
    final_at: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    fault_mask: int = 0
    open_disputes: int = 0
    layers: int = 0
    embed_units: int = 0
    head_units: int = 0
    state: t.JobState = t.JobState.NONE
    is_spenders: bool = False


@dataclass
class Network:
    """What is fixed at deployment, and the hashes that Python and the chain share (§2)."""

    clocks: Any  # core.protocol.network_file.Parameters
    fee_account: str
    model: t.ModelSpec
    model_id: str
    arbitrators: Sequence[str]
    evidence: str
    burn: str
    addresses: Mapping[str, str]
    contracts: Sequence[str]  # accounts with code, which sign nothing as plain keys do
    order_hash: Callable[[t.Order], str]
    plan_hash: Callable[[Sequence[t.Stage]], str]
    job_id: Callable[[t.Order], str]
    receipt_hash: Callable[[t.StageReceipt], str]
