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
from benchmarks.siege.besieged import Besieged, besieged, others_s
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

Beside = Callable[[Besieged, Target], Coroutine[Any, Any, Counter[str]]]
"""Who else acts, honestly, beside the attack and beside an idle attacker; what that came to."""


@dataclass(frozen=True)
class Attack:
    """One attack: its part, whom it hurts, and how its key of the gateway is made."""

    part: str
    title: str
    victims: tuple[str, ...]
    key_options: tuple[str, ...] = ()
    paying: str = ""
    """What else of the part asks for as much and pays for it."""


@dataclass(frozen=True)
class Doing:
    """What an actor does: a module of this room, and its function."""

    name: str
    act: str = "act"


@dataclass(frozen=True)
class _Acted:
    """When actors acted, and what came of it. `others` and `cpu_share` are in processors."""

    since: float
    until: float
    others: float
    cpu_share: float
    most: dict[str, int]
    done: Counter[str]
    beside: Counter[str]


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
    paying: Period | None
    """Beside one that asks for as much and pays for it."""
    beside: Counter[str]
    beside_idle: Counter[str]

    def share_of(self, control: Period) -> float:
        """Honest tokens beside the attack, of those in a control."""
        return self.attacked.tokens_per_s / max(control.tokens_per_s, 1e-9)

    @property
    def grown(self) -> tuple[str, int]:
        """The victim that grew most, and by how many bytes."""
        name = max(self.most, key=lambda one: self.most[one] - self.before[one])
        return name, self.most[name] - self.before[name]


def measure(attack: Attack, seconds: float, beside: Beside | None = None) -> Measured:
    """Attack for so many seconds, and idle for as many."""
    with besieged() as siege:
        return siege.loop.run(_measure(siege, attack, seconds, beside))


def rows(attack: Attack, seconds: float) -> list[Row]:
    """What honest clients had, and how much memory the attack took."""
    return rows_of(attack, measure(attack, seconds))


async def _measure(
    siege: Besieged, attack: Attack, seconds: float, beside: Beside | None
) -> Measured:
    target = await siege.target(attack.part, *attack.key_options)
    async with crowd(siege.world.net.gateway_url, siege.keys) as clients:
        await _warm_up(clients, seconds * WARM_UP_SHARE)
        before = siege.resident_bytes(attack.victims)
        acted = await _act(siege, attack, Doing(attack.part), [target], seconds, beside)
        ended = time.monotonic()
        await asyncio.sleep(BACK_WITHIN_S)
        count = max(1, math.ceil(acted.cpu_share))
        idle = [msgspec.structs.replace(target, share=acted.cpu_share / count)] * count
        idled = await _act(siege, attack, Doing("idle"), idle, seconds, beside)
        control = await _period(clients, idled)
        paying = None
        if attack.paying:
            paid = await _act(siege, attack, Doing(attack.part, attack.paying), [target], seconds)
            paying = await _period(clients, paid)
        usual_s = max(USUAL_S, 2 * control.median_first_s)
        return Measured(
            attacked=clients.period(acted.since, acted.until, acted.others),
            control=control,
            back_s=clients.normal_after_s(ended, usual_s),
            cpu_share=acted.cpu_share,
            done=acted.done,
            before=before,
            most=acted.most,
            paying=paying,
            beside=acted.beside,
            beside_idle=idled.beside,
        )


async def _nobody(siege: Besieged, target: Target) -> Counter[str]:
    return Counter()


async def _warm_up(clients: Crowd, seconds: float) -> None:
    """Let the clients ask for a while, until one at least is answered."""
    until = time.monotonic() + seconds
    while time.monotonic() < until or not any(a.ended and not a.error for a in clients.answers):
        await asyncio.sleep(SAMPLE_S)


async def _most_resident_bytes(siege: Besieged, attack: Attack, seconds: float) -> dict[str, int]:
    """The largest of each victim in so many seconds from now, that two looks in a row found: what
    is about to become another program is for a moment as large as the one that started it.
    """
    until, most, last = time.monotonic() + seconds, Counter[str](), Counter[str]()
    while time.monotonic() < until:
        await asyncio.sleep(min(SAMPLE_S, max(0.0, until - time.monotonic())))
        now = Counter(siege.resident_bytes(attack.victims))
        most |= last & now
        last = now
    return dict(most)


async def _act(
    siege: Besieged,
    attack: Attack,
    part: Doing,
    targets: Sequence[Target],
    seconds: float,
    beside: Beside | None = None,
) -> _Acted:
    """Have actors act for so long, an honest one beside the first of them."""
    async with _acting(siege, part, targets) as actors:
        since, others_before_s = time.monotonic(), others_s()
        other = asyncio.create_task((beside or _nobody)(siege, targets[0]))
        most = await _most_resident_bytes(siege, attack, seconds)
        took_s = (until := time.monotonic()) - since
        others = (others_s() - others_before_s) / took_s
        cpu_share = sum(one.cpu_s for one in actors) / took_s
        besides = await other
        done = Counter[str]()
        for one in actors:
            await one.end()
            done += one.done
    return _Acted(since, until, others, cpu_share, most, done, besides)


async def _period(clients: Crowd, acted: _Acted) -> Period:
    """What clients had meanwhile, once all that they had begun is over."""
    while any(answer.ended is None for answer in clients.begun(acted.since, acted.until)):
        await asyncio.sleep(SAMPLE_S)
    return clients.period(acted.since, acted.until, acted.others)


@asynccontextmanager
async def _acting(
    siege: Besieged, part: Doing, targets: Sequence[Target]
) -> AsyncIterator[list[Actor]]:
    async with AsyncExitStack() as stack:
        logs = siege.world.net.layout.logs
        actors = [
            await stack.enter_async_context(actor(part.name, one, logs, part.act))
            for one in targets
        ]
        for one in actors:
            await one.begin()
        yield actors


def rows_of(attack: Attack, seen: Measured) -> list[Row]:
    """One row for what clients noticed, one for memory."""
    attacked, control, (grown_by, grown) = seen.attacked, seen.control, seen.grown
    share = seen.share_of(control)
    first = f"; {attacked.errors[0]}" if attacked.errors else ""
    did = ", ".join(f"{count:,} {name}" for name, count in sorted(seen.done.items()))
    noticed = (
        f"{share:.0%} ({attacked.tokens_per_s:.0f} tokens/s), {len(attacked.errors)} of "
        f"{attacked.answers} failed{first}, first token {attacked.worst_first_s:.2f} s at most, "
        f"back after {seen.back_s:.1f} s; {did}"
    )
    is_well = (
        share >= LEAST_SHARE
        and not attacked.errors
        and attacked.worst_first_s <= WORST_FIRST_S
        and seen.back_s <= BACK_WITHIN_S
    )
    beside = (
        f"{control.tokens_per_s:.0f} tokens/s, {len(control.errors)} failed, first token "
        f"{control.worst_first_s:.2f} s at most, beside {seen.cpu_share:.0%} of a processor; "
        f"the machine's other processes took {attacked.others:.2f}, then {control.others:.2f}"
    )
    reach = (
        f"≥ {LEAST_SHARE:.0%}, 0 failed, first token ≤ {WORST_FIRST_S:g} s, "
        f"back ≤ {BACK_WITHIN_S:g} s"
    )
    found = [
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
    return found if seen.paying is None else [*found, _beside_paying(attack, seen, seen.paying)]


def _beside_paying(attack: Attack, seen: Measured, paying: Period) -> Row:
    """An attacker that has work done takes places that others would pay for."""
    share = seen.share_of(paying)
    return Row(
        f"{attack.title}: honest tokens/s, of those beside one that asks for as much and pays",
        f"≥ {LEAST_SHARE:.0%}",
        f"{share:.0%} ({seen.attacked.tokens_per_s:.0f} tokens/s)",
        f"{paying.tokens_per_s:.0f} tokens/s",
        "100 %",
        share >= LEAST_SHARE,
    )
