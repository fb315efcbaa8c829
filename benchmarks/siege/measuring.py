"""How is an attack measured? Honest clients beside it, then beside an idle one of its size.

An idle attacker computes as much as the attack did and talks to nobody, so that what the clients
lose beside it is the machine's, which both share, and no fault of who is attacked.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.siege.actor import Actor, Target, actor
from benchmarks.siege.besieged import Besieged, besieged
from benchmarks.siege.honest import Crowd, Period, crowd
from benchmarks.table import Row

SECONDS = 60.0
LEAST_SHARE, WORST_FIRST_S, MOST_GROWN_BYTES, BACK_WITHIN_S = 0.8, 2.0, 64 * 2**20, 5.0
#: A request is answered as usual whose first token comes in twice the usual time, or in this.
USUAL_S = 0.5
#: Before an attack, of its seconds.
WARM_UP_SHARE = 1 / 6
SAMPLE_S = 0.5
MIB = 2**20

Beside = Callable[[Besieged, Target], Coroutine[Any, Any, None]]
"""What else happens during an attack."""


@dataclass(frozen=True)
class Attack:
    """One attack: its part, whom it hurts, and how its key of the gateway is made."""

    part: str
    title: str
    victims: tuple[str, ...]
    key_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """What an attack came to. Memory is in bytes by victim: before, and most during it."""

    attacked: Period
    control: Period
    back_s: float
    cpu_share: float
    done: Counter[str]
    before: dict[str, int]
    most: dict[str, int]

    @property
    def share(self) -> float:
        """Honest tokens beside the attack, of those beside an idle attacker."""
        return self.attacked.tokens_per_s / max(self.control.tokens_per_s, 1e-9)

    @property
    def grown(self) -> tuple[str, int]:
        """The victim that grew most, and by how many bytes."""
        name = max(self.most, key=lambda one: self.most[one] - self.before[one])
        return name, self.most[name] - self.before[name]


def measure(attack: Attack, seconds: float, beside: Beside | None = None) -> Measured:
    """Attack for so many seconds, and idle for as many."""
    with besieged() as siege:
        return siege.loop.run(_measure(siege, attack, seconds, beside))


def rows(attack: Attack, seconds: float, beside: Beside | None = None) -> list[Row]:
    """What honest clients had, and how much memory the attack took."""
    return rows_of(attack, measure(attack, seconds, beside))


async def _measure(
    siege: Besieged, attack: Attack, seconds: float, beside: Beside | None
) -> Measured:
    target = await siege.target(attack.part, *attack.key_options)
    async with crowd(siege.world.net.gateway_url, siege.keys) as clients:
        await _warm_up(clients, seconds * WARM_UP_SHARE)
        before = siege.rss_bytes(attack.victims)
        async with _acting(siege, attack.part, [target]) as actors:
            since = time.monotonic()
            other = asyncio.create_task(beside(siege, target)) if beside else None
            most = await _most_rss_bytes(siege, attack, seconds)
            until = time.monotonic()
            share = sum(one.cpu_s for one in actors) / (until - since)
            if other is not None:
                await other
            for one in actors:
                await one.end()
        ended = time.monotonic()
        await asyncio.sleep(BACK_WITHIN_S)
        attacked = clients.period(since, until)
        control = await _control(siege, attack, target, clients, share, seconds)
        usual_s = max(USUAL_S, 2 * control.median_first_s)
        back_s = clients.normal_after_s(ended, usual_s)
    done = Counter[str]()
    for one in actors:
        done += one.done
    return Measured(attacked, control, back_s, share, done, before, most)


async def _warm_up(clients: Crowd, seconds: float) -> None:
    """Let the clients ask for a while, until one at least is answered."""
    until = time.monotonic() + seconds
    while time.monotonic() < until or not any(a.ended and not a.error for a in clients.answers):
        await asyncio.sleep(SAMPLE_S)


async def _most_rss_bytes(siege: Besieged, attack: Attack, seconds: float) -> dict[str, int]:
    """The largest of each victim in so many seconds from now."""
    until, most = time.monotonic() + seconds, Counter[str]()
    while time.monotonic() < until:
        await asyncio.sleep(min(SAMPLE_S, max(0.0, until - time.monotonic())))
        most |= Counter(siege.rss_bytes(attack.victims))
    return dict(most)


async def _control(
    siege: Besieged,
    attack: Attack,
    target: Target,
    clients: Crowd,
    share: float,
    seconds: float,
) -> Period:
    """The same without the attack, beside as much computing."""
    count = max(1, math.ceil(share))
    idle = [msgspec.structs.replace(target, share=share / count)] * count
    async with _acting(siege, "idle", idle):
        since = time.monotonic()
        await _most_rss_bytes(siege, attack, seconds)  # as it is looked at in the attack
        until = time.monotonic()
    while any(answer.ended is None for answer in clients.begun(since, until)):
        await asyncio.sleep(SAMPLE_S)
    return clients.period(since, until)


@asynccontextmanager
async def _acting(
    siege: Besieged, part: str, targets: Sequence[Target]
) -> AsyncIterator[list[Actor]]:
    async with AsyncExitStack() as stack:
        logs = siege.world.net.layout.logs
        actors = [await stack.enter_async_context(actor(part, one, logs)) for one in targets]
        for one in actors:
            await one.begin()
        yield actors


def rows_of(attack: Attack, seen: Measured) -> list[Row]:
    """One row for what clients noticed, one for memory."""
    attacked, control, (grown_by, grown) = seen.attacked, seen.control, seen.grown
    first = f"; {attacked.errors[0]}" if attacked.errors else ""
    did = ", ".join(f"{count:,} {name}" for name, count in sorted(seen.done.items()))
    noticed = (
        f"{seen.share:.0%} ({attacked.tokens_per_s:.0f} tokens/s), {len(attacked.errors)} of "
        f"{attacked.answers} failed{first}, first token {attacked.worst_first_s:.2f} s at most, "
        f"back after {seen.back_s:.1f} s; {did}"
    )
    is_well = (
        seen.share >= LEAST_SHARE
        and not attacked.errors
        and attacked.worst_first_s <= WORST_FIRST_S
        and seen.back_s <= BACK_WITHIN_S
    )
    beside = (
        f"{control.tokens_per_s:.0f} tokens/s, {len(control.errors)} failed, first token "
        f"{control.worst_first_s:.2f} s at most, beside {seen.cpu_share:.0%} of a processor"
    )
    reach = (
        f"≥ {LEAST_SHARE:.0%}, 0 failed, first token ≤ {WORST_FIRST_S:g} s, "
        f"back ≤ {BACK_WITHIN_S:g} s"
    )
    return [
        Row(f"{attack.title}: honest tokens/s", reach, noticed, beside, "100 %", is_well),
        Row(
            f"{attack.title}: memory of {', '.join(attack.victims)}",
            f"≤ +{MOST_GROWN_BYTES / MIB:.0f} MiB",
            f"{grown / MIB:+.1f} MiB ({grown_by}, {seen.before[grown_by] / MIB:.0f} MiB before)",
            "",
            "0 MiB",
            grown <= MOST_GROWN_BYTES,
        ),
    ]
