"""What do the chain's events change in what we know?

An event's effect and the follower's position are stored together. A rollback marks what came from
lost blocks as doubtful; the jobs in doubt are then read from the chain anew, one by one. A job of
ours that the database does not know, or has given up for another plan, is rebuilt from its own
transaction, without the stages' acceptances: they are not in it. One that it has given up and the
chain took late lives again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from core.chain.chain import Chain, ChainCall, ChainEvent
from core.chain.follower import EventBatch, EventFollower
from core.money import pricing
from core.protocol.ids import Kind, short
from core.protocol.types import REGISTERED, ModelSpec, Order, SignedOrder, Stage
from core.protocol.units import whole_units
from core.runtime.logs import get_logger
from matcher.records.jobs import (
    CANCELLED,
    DELIVERED,
    EXPIRED,
    FAILED,
    MATCHED,
    OPENING,
    SETTLED,
    Job,
)
from matcher.records.store import JobChange, Store

log = get_logger(__name__)


@dataclass
class Followed:
    """What one look at the chain brought."""

    jobs: set[str] = field(default_factory=set)  # of which events spoke
    miners_changed: bool = False
    models_changed: bool = False
    rolled_back: bool = False
    began: list[ChainEvent] = field(default_factory=list)  # jobs that were opened, or matched
    events: int = 0
    block: int = 0


#: Event → the state that it puts a job in ("": none), and what it says beside its numbers.
_SAYS = {
    "JobDelivered": (DELIVERED, ("deliver_tx", "beacon")),
    "JobAcknowledged": ("", ("beacon",)),
    "JobSettled": (SETTLED, ("end_tx", "beacon")),
    "JobExpired": (EXPIRED, ("end_tx",)),
    "JobCancelled": (CANCELLED, ("end_tx",)),
}
_NUMBERS = {
    "tokensIn": "tokens_in",
    "tokensOut": "tokens_out",
    "finalAt": "final_at_s",
}
_NANO_NUMBERS = {
    "paidNano": "paid_units",
    "refundedNano": "refunded_units",
    "withheldNano": "withheld_units",
}


def job_change(event: ChainEvent) -> JobChange | None:
    """What an event of TaskRegistry says of its job; None when it only says "look again"."""
    if event.name not in _SAYS:
        return None
    state, others = _SAYS[event.name]
    values: dict[str, Any] = {"state": state} if state else {}
    if state in (EXPIRED, CANCELLED):
        values |= {"paid_units": 0, "withheld_units": 0}
    args = event.args
    values |= {ours: int(args[name]) for name, ours in _NUMBERS.items() if name in args}
    values |= {
        ours: whole_units(args[name]) for name, ours in _NANO_NUMBERS.items() if name in args
    }
    said = {"beacon": event.block_hash, "deliver_tx": event.tx_hash, "end_tx": event.tx_hash}
    values |= {name: said[name] for name in others}
    values |= {"state_block": event.block_number, "stale": False}
    return JobChange(str(event.args["job"]), values)


def job_from_call(call: ChainCall, event: ChainEvent, spec: ModelSpec) -> Job:
    """The job that a mined `openMatched` opened, or `matchJob` matched.

    Without endpoints, which the swarm says again, and without acceptances, which no longer matter.
    """
    order = msgspec.convert(call.args["order"], Order)
    plan = tuple(msgspec.convert(stage, Stage) for stage in call.args["plan"])
    return Job(
        job_id=str(event.args["job"]),
        signed=SignedOrder(order, call.args.get("requesterSig", REGISTERED)),
        plan=plan,
        endpoints=("",) * len(plan),
        acceptances=(),
        locked_units=pricing.max_amount(order, spec),
        state=MATCHED,
        open_tx=event.tx_hash,
    )


class JobFollower:
    """Reads events into the store."""

    def __init__(
        self, chain: Chain, store: Store, address: str, *, start_block: int, window: int
    ) -> None:
        self._chain, self._store, self._address = chain, store, address
        self._start_block, self._window = start_block, window
        self._follower: EventFollower | None = None

    async def follow(self, now: int) -> Followed:
        """Take in everything since the last time. Raises ChainUnreachable and changes nothing."""
        if self._follower is None:
            position = await self._store.off_loop(self._store.position)
            self._follower = EventFollower(
                self._chain, start_block=self._start_block, position=position, window=self._window
            )
        try:
            batch = await self._follower.poll()
            return await self._take_in(batch, now)
        except BaseException:
            self._follower = None  # its position may be ahead of what is stored
            raise

    async def _take_in(self, batch: EventBatch, now: int) -> Followed:
        seen = Followed(
            rolled_back=batch.rolled_back_to is not None,
            events=len(batch.events),
            block=batch.position.last or 0,
        )
        if seen.rolled_back:
            log.warning(
                "blocks were lost", back_to=batch.rolled_back_to, replaced=batch.chain_replaced
            )
        models = await self._models_of(batch.events)
        known = {**await self._store.off_loop(self._store.models)}
        known |= {model_id: spec for model_id, (spec, _) in models.items()}
        changes = []
        for event in batch.events:
            if event.contract == "MinerRegistry":
                seen.miners_changed = True
            elif event.contract == "TaskRegistry" and "job" in event.args:
                seen.jobs.add(str(event.args["job"]))
                if event.name in ("JobOpened", "JobMatched"):
                    seen.began.append(event)
                if event.name == "JobMatched":
                    await self._adopt(event, known, now)
                change = job_change(event)
                if change is not None:
                    changes.append(change)
        await self._store.off_loop(
            self._store.apply,
            batch.position,
            changes,
            models,
            rolled_back_to=batch.rolled_back_to,
            now=now,
        )
        seen.models_changed = bool(models) or seen.rolled_back
        return seen

    async def _models_of(self, events: Sequence[ChainEvent]) -> dict[str, tuple[ModelSpec, int]]:
        found = {}
        for event in events:
            if event.contract == "ModelRegistry" and event.name == "ModelRegistered":
                model_id = str(event.args["id"])
                spec = await self._chain.read("ModelRegistry", "specOf", model_id)
                found[model_id] = (msgspec.convert(spec, ModelSpec), event.block_number)
        return found

    async def _adopt(self, event: ChainEvent, models: dict[str, ModelSpec], now: int) -> None:
        job_id = str(event.args["job"])
        if str(event.args["matcher"]).lower() != self._address.lower():
            return
        known = await self._store.off_loop(self._store.job, job_id)
        values: dict[str, Any] = {"open_tx": event.tx_hash, "state_block": event.block_number}
        if known is None or known.plan_hash != event.args["planHash"]:
            call = await self._chain.call_of(event.tx_hash)
            if call is None or call.function not in ("openMatched", "matchJob"):
                return
            model = models.get(str(call.args["order"]["modelId"]))
            if model is None:
                return
            await self._store.off_loop(self._store.adopt, job_from_call(call, event, model), now)
            log.info("job adopted from the chain", job=short(Kind.JOB, job_id))
        elif known.state in (OPENING, FAILED):
            values |= {"state": MATCHED, "failure": ""}
        await self._store.off_loop(self._store.change, JobChange(job_id, values), now)
