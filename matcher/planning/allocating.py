"""Which machines must be told what to hold, and when again?

Each machine is told over a stream of its own, by a key that it can prove: nothing about layers lies
in the swarm, where anyone could write it and a plan for hundreds of machines is one large record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.protocol import wire
from core.protocol.errors import HeadraceError
from core.runtime.logs import get_logger
from core.runtime.tasks import spawn
from matcher.fleet.fleet_view import Sighting
from matcher.planning.planner import Placement

if TYPE_CHECKING:
    from core.runtime.clock import Clock
    from core.runtime.network.collecting import Dialer

#: Miners follow another matcher when theirs has been silent for a minute (`miner.daemon`).
TELL_EVERY_S = 20.0
TELL_AGAIN_S = 2.0
TELL_TIMEOUT_S = 5.0
AT_ONCE = 64
log = get_logger(__name__)


@dataclass(frozen=True)
class Heard:
    """What a machine has heard last, and when, on the machine's clock in ms and on ours in s."""

    sequence: int
    at_s: float
    at_ms: int
    follows: bool


def is_due(heard: Heard | None, sighting: Sighting, sequence: int, now_s: float) -> bool:
    """Whether a machine must hear of allocation `sequence` now: it is new, it is time again, or
    the machine has forgotten it since it heard of it.
    """
    if heard is None or heard.sequence != sequence or now_s - heard.at_s >= TELL_EVERY_S:
        return True
    record = sighting.record
    return heard.follows and record.sent_at_ms > heard.at_ms and record.allocation != sequence


class Allocator:
    """Tells machines what a plan wants them to hold."""

    def __init__(self, peers: Dialer, clock: Clock, tasks: set[asyncio.Task[Any]]) -> None:
        """Streams that it opens are among `tasks`."""
        self._peers, self._clock, self._tasks = peers, clock, tasks
        self._plans: dict[str, tuple[Placement, int]] = {}
        self._heard: dict[str, Heard] = {}
        self._not_before: dict[str, float] = {}
        self._asking = 0

    def tell(self, model_id: str, placement: Placement, machines: Iterable[Sighting]) -> None:
        """Tell those of a model's machines that must be told; failures are tried again."""
        sequence, now_s = self._sequence(model_id, placement), self._clock.monotonic()
        for sighting in machines:
            operator = sighting.operator
            is_known = operator in placement.assignments or operator in placement.standby
            if not is_known or self._asking >= AT_ONCE:
                continue
            is_early = now_s < self._not_before.get(operator, now_s)
            if is_early or not is_due(self._heard.get(operator), sighting, sequence, now_s):
                continue
            self._not_before[operator] = now_s + TELL_AGAIN_S
            layers = placement.assignments.get(operator)
            self._asking += 1
            spawn(self._tell(sighting, wire.Allocate(model_id, layers, sequence)), self._tasks)

    def keep_only(self, machines: Mapping[str, Sighting]) -> None:
        """Forget about machines that are gone."""
        for book in (self._heard, self._not_before):
            for operator in book.keys() - machines.keys():
                del book[operator]

    def _sequence(self, model_id: str, placement: Placement) -> int:
        """A later one for each plan, also after a restart."""
        last = self._plans.get(model_id)
        if last is None or last[0] is not placement:
            number = max(int(self._clock.now() * 1000), last[1] + 1 if last else 0)
            last = self._plans[model_id] = (placement, number)
        return last[1]

    async def _tell(self, sighting: Sighting, message: wire.Allocate) -> None:
        operator = sighting.operator
        try:
            async with asyncio.timeout(TELL_TIMEOUT_S):
                stream = await self._peers.get(operator, sighting.record.endpoint)
                answer = (await stream.call(message, timeout_s=TELL_TIMEOUT_S)).message
        except (HeadraceError, TimeoutError) as error:
            log.debug("a machine was not told its layers", operator=operator, why=str(error))
            return
        finally:
            self._asking -= 1
        follows = isinstance(answer, wire.Allocated)
        if not follows:
            log.debug("a machine follows another", operator=operator, answer=str(answer)[:200])
        at_s, at_ms = self._clock.monotonic(), int(self._clock.now() * 1000)
        self._heard[operator] = Heard(message.sequence, at_s, at_ms, follows)
