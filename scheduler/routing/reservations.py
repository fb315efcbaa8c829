"""Who has been promised which part of each machine, and who is next?

Counted the moment a chain is chosen, not when telemetry says so: with seconds-old counters every
request would herd to the machine that was idle last. A lease holds slots and KV room on all its
machines or on none. Telemetry adds what others use; it never takes back what was promised here.
Time comes with every call.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

#: How long an ended lease is remembered, to understand telemetry sent while it ran.
MEMORY_MS = 60_000
#: A report from further in the future than this has a wrong clock.
SKEW_MS = 5_000
#: No machine has more slots or tokens than this.
MOST = 2**62


class LeaseError(ValueError):
    """A move that the state of the lease does not allow, or a need that no machine can have."""


class Need(NamedTuple):
    """Part of one machine: requests at once, and KV room in tokens.

    `wished` more requests may come: they make a machine slower than it looks, and take no room.
    """

    slots: int = 1
    kv_tokens: int = 0
    wished: int = 0


NOTHING = Need(0, 0)


@dataclass(frozen=True, slots=True)
class Lease:
    """What one request or job holds, by machine, from when and until when unless it is released."""

    needs: Mapping[str, Need]
    since_ms: int
    until_ms: int


@dataclass(slots=True)
class _Ended:
    lease: Lease
    at_ms: int


@dataclass(slots=True)
class _Machine:
    room: Need
    held: Need = NOTHING
    foreign: Need = NOTHING
    heard_ms: int = -1


@dataclass(slots=True)
class _Waiting:
    since_ms: int
    tried: int  # the version at which it found no room
    among: frozenset[str] | None  # machines that would do; None: any
    owner: str = ""
    rank: int = 0  # above those of its owner's that waited before it


@dataclass(slots=True)
class Ignored:
    """Telemetry that changed nothing, by reason."""

    late: int = 0
    absurd: int = 0
    unknown: int = 0


@dataclass(slots=True)
class Reservations:
    """Leases over machines. A name is free, waiting, or held.

    Requests that wait are served in order of arrival, their owners by turns: none takes a machine
    that an earlier one awaits. ``version`` grows whenever room appears, so nobody is woken in vain.
    """

    version: int = 0
    ignored: Ignored = field(default_factory=Ignored)
    _machines: dict[str, _Machine] = field(default_factory=dict)
    _leases: dict[str, Lease] = field(default_factory=dict)
    _queue: OrderedDict[str, _Waiting] = field(default_factory=OrderedDict)
    _on: dict[str, dict[str, Lease]] = field(default_factory=dict)  # by machine and name
    _ended: dict[str, deque[_Ended]] = field(default_factory=dict)  # by machine
    _touched: set[str] = field(default_factory=set)

    def announce(self, machine_id: str, slots: int, kv_tokens: int = MOST) -> None:
        """A machine has this much in all; where more is held, it takes nothing new meanwhile."""
        _check(Need(slots, kv_tokens))
        machine = self._machines.get(machine_id)
        if machine is None:
            held = NOTHING
            for lease in self._on.get(machine_id, {}).values():
                held = _plus(held, lease.needs[machine_id])
            self._machines[machine_id] = _Machine(Need(slots, kv_tokens), held)
        elif machine.room == Need(slots, kv_tokens):
            return
        else:
            machine.room = Need(slots, kv_tokens)
        self._touched.add(machine_id)
        self.version += 1

    def forget(self, machine_id: str) -> tuple[str, ...]:
        """A machine is gone; the leases that count on it, which their owners must route anew."""
        if self._machines.pop(machine_id, None) is not None:
            self._touched.add(machine_id)
        self._ended.pop(machine_id, None)
        return tuple(self._on.get(machine_id, ()))

    def hold(
        self,
        name: str,
        needs: Mapping[str, Need],
        now_ms: int,
        until_ms: int,
        *,
        agreed: bool = False,
    ) -> bool:
        """Take all of this at once, in place of what the name holds; False where it does not fit.

        ``agreed`` counts it even so: the machines themselves have accepted. A name that waits stops
        waiting. A machine that an earlier request waits for has no room for a later one.
        """
        if until_ms < now_ms:
            raise LeaseError(f"{name}: a lease until {until_ms} at {now_ms}")
        for need in needs.values():
            _check(need)
        self.expire(now_ms)
        before = self._leases.get(name)
        if not agreed:
            if before is None and self._overtakes(name, needs):
                return False
            own = before.needs if before is not None else {}
            for machine_id, need in needs.items():
                free = _plus(self.free(machine_id), own.get(machine_id, NOTHING))
                if machine_id not in self._machines or not _fits(need, free):
                    if name in self._queue:
                        self._queue[name].tried = self.version
                    return False
        if before is not None:
            self._end(name, now_ms)
        self._queue.pop(name, None)
        lease = self._leases[name] = Lease(dict(needs), now_ms, until_ms)
        for machine_id, need in needs.items():
            self._on.setdefault(machine_id, {})[name] = lease
            if machine_id in self._machines:
                machine = self._machines[machine_id]
                machine.held = _plus(machine.held, need)
                self._touched.add(machine_id)
        return True

    def release(self, name: str, now_ms: int) -> bool:
        """The work is over, or never began; whether there was anything. Safe to call twice."""
        waited = self._queue.pop(name, None) is not None
        if waited:
            self.version += 1  # the next in line may be smaller
        return (name in self._leases and self._end(name, now_ms)) or waited

    def expire(self, now_ms: int) -> tuple[str, ...]:
        """Leases whose time is over end; their names."""
        over = tuple(name for name, lease in self._leases.items() if lease.until_ms < now_ms)
        for name in over:
            self._end(name, now_ms)
        return over

    def wait(
        self, name: str, now_ms: int, among: frozenset[str] | None = None, owner: str = ""
    ) -> int:
        """Stand in the queue for room on these machines (None: any); how many are before it.

        An owner's second request stands behind the first ones of all others that wait, and so on.
        Waiting twice keeps the place. LeaseError for who holds a lease.
        """
        if name in self._leases:
            raise LeaseError(f"{name} holds a lease and has nothing to wait for")
        if name in self._queue:
            self._queue[name].among = among
        else:
            same = (waiting.rank for waiting in self._queue.values() if waiting.owner == owner)
            rank = max(same, default=-1) + 1
            later = [other for other, waiting in self._queue.items() if waiting.rank > rank]
            self._queue[name] = _Waiting(now_ms, self.version, among, owner, rank)
            for other in later:
                self._queue.move_to_end(other)
        return list(self._queue).index(name)

    def due(self) -> str | None:
        """Who may try now: the first that nobody earlier holds up, if room appeared since."""
        earlier: set[str] = set()
        for place, (name, waiting) in enumerate(self._queue.items()):
            among = waiting.among
            first = place == 0 or (among is not None and earlier.isdisjoint(among))
            if first and waiting.tried < self.version:
                return name
            if among is None:
                return None
            earlier |= among
        return None

    def claimed(self, name: str) -> frozenset[str]:
        """Machines that a request before this one waits for."""
        earlier: set[str] = set()
        for other, waiting in self._queue.items():
            if other == name:
                break
            earlier.update(self._machines if waiting.among is None else waiting.among)
        return frozenset(earlier)

    def failed(self, name: str) -> None:
        """Who is due found no chain; it is not due again before room appears."""
        if name not in self._queue:
            raise LeaseError(f"{name} does not wait")
        self._queue[name].tried = self.version

    def observe(
        self, machine_id: str, slots: int, kv_tokens: int, sent_ms: int, now_ms: int
    ) -> bool:
        """A machine says what of it is in use. What was not held here then, others use.

        Late, absurd and unknown reports change nothing and are counted.
        """
        machine = self._machines.get(machine_id)
        if machine is None:
            self.ignored.unknown += 1
            return False
        if not (0 <= slots < MOST and 0 <= kv_tokens < MOST) or sent_ms > now_ms + SKEW_MS:
            self.ignored.absurd += 1
            return False
        if sent_ms <= machine.heard_ms or sent_ms < now_ms - MEMORY_MS:
            self.ignored.late += 1
            return False
        machine.heard_ms = sent_ms
        then = NOTHING
        ended = (it.lease for it in self._ended.get(machine_id, ()) if it.at_ms > sent_ms)
        for lease in chain(self._on.get(machine_id, {}).values(), ended):
            if lease.since_ms <= sent_ms:
                then = _plus(then, lease.needs[machine_id])
        foreign = Need(max(0, slots - then.slots), max(0, kv_tokens - then.kv_tokens))
        if foreign.slots < machine.foreign.slots or foreign.kv_tokens < machine.foreign.kv_tokens:
            self.version += 1
        if foreign != machine.foreign:
            self._touched.add(machine_id)
            machine.foreign = foreign
        return True

    def free(self, machine_id: str) -> Need:
        """What is left of a machine, below zero where it shrank; nothing of one that is unknown."""
        machine = self._machines.get(machine_id)
        if machine is None:
            return NOTHING
        used = _plus(machine.held, machine.foreign)
        return Need(machine.room.slots - used.slots, machine.room.kv_tokens - used.kv_tokens)

    def wished(self, machine_id: str) -> int:
        """Requests that may come to a machine beside those that have a slot."""
        machine = self._machines.get(machine_id)
        return 0 if machine is None else machine.held.wished

    def used(self, now_ms: int) -> dict[str, Need]:
        """What is in use of every known machine: promised here and taken by others."""
        self.expire(now_ms)
        return {name: _plus(m.held, m.foreign) for name, m in sorted(self._machines.items())}

    def promised(self, now_ms: int) -> dict[str, int]:
        """Slots promised here by machine, known or not, where there are any."""
        self.expire(now_ms)
        slots: dict[str, int] = {}
        for lease in self._leases.values():
            for machine_id, need in lease.needs.items():
                slots[machine_id] = slots.get(machine_id, 0) + need.slots
        return slots

    def touched(self) -> frozenset[str]:
        """Machines whose room, or what is in use of it, has changed since this was last asked."""
        changed, self._touched = frozenset(self._touched), set()
        return changed

    def lease(self, name: str) -> Lease | None:
        """What a name holds."""
        return self._leases.get(name)

    def waiting(self) -> tuple[str, ...]:
        """Who waits, first come first."""
        return tuple(self._queue)

    def __len__(self) -> int:
        return len(self._leases)

    def _overtakes(self, name: str, needs: Mapping[str, Need]) -> bool:
        for other, waiting in self._queue.items():
            if other == name:
                return False
            if waiting.among is None or not waiting.among.isdisjoint(needs):
                return True
        return False

    def _end(self, name: str, now_ms: int) -> bool:
        lease = self._leases.pop(name)
        for machine_id, need in lease.needs.items():
            machine = self._machines.get(machine_id)
            if machine is not None:
                machine.held = Need(
                    *(had - gone for had, gone in zip(machine.held, need, strict=True))
                )
                self._touched.add(machine_id)
                past = self._ended.setdefault(machine_id, deque())
                past.append(_Ended(lease, now_ms))
                while past[0].at_ms < now_ms - MEMORY_MS:
                    past.popleft()
            held = self._on[machine_id]
            del held[name]
            if not held:
                del self._on[machine_id]
        self.version += 1
        return True


def _check(need: Need) -> None:
    if not all(0 <= part <= MOST for part in need):
        raise LeaseError(f"{need.slots} slots and {need.kv_tokens} tokens: no machine has that")


def _plus(a: Need, b: Need) -> Need:
    return Need(a.slots + b.slots, a.kv_tokens + b.kv_tokens, a.wished + b.wished)


def _fits(need: Need, free: Need) -> bool:
    return need.slots <= free.slots and need.kv_tokens <= free.kv_tokens
