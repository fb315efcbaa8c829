"""What is on its way, and when does it arrive?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heappush
from itertools import count
from typing import Any, TypeAlias

from scheduler.fleet.costs import link_bytes_per_token
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Coordinator, Fleet, Located, ModelShape
from scheduler.simulate.options import SimOptions
from scheduler.simulate.world import RunningRequest, SimLink, Visit, Worker

#: Kinds of events. The first two are by far the most frequent.
DONE, WAKE, HOME, HOMES, ISSUE, FREE, CHANGE, MARK = range(8)
#: (time, sequence number, kind, a, b): ties are broken by order of making, never by what is
#: compared next.
Event: TypeAlias = tuple[float, int, int, Any, Any]


class Network:
    """The calendar of events, and the links. Messages go to a worker's inbox; one event wakes it.

    A busy worker needs no event for what arrives meanwhile: it looks at its inbox when its pass is
    done, so there is one event per pass instead of one per message.
    """

    def __init__(self, fleet: Fleet, model: ModelShape, options: SimOptions) -> None:
        self.heap: list[Event] = []
        self.next_seq = count().__next__
        self._fleet = fleet
        self._model = model
        self._options = options
        self._decode_first = options.decode_first
        self._message_s, self._step_s = options.message_s, options.step_s
        self.home: Located = fleet.coordinator or Coordinator()
        self.links: dict[tuple[str, str], SimLink] = {}

    def push(self, at_s: float, kind: int, a: Any = None, b: Any = None) -> None:
        """Let something happen at a time."""
        heappush(self.heap, (at_s, self.next_seq(), kind, a, b))

    def link(self, source_id: str, target_id: str) -> SimLink:
        """The link between two places. Without a coordinator the way home costs nothing."""
        link = self.links.get((source_id, target_id))
        if link is None:
            link = self.links[source_id, target_id] = self._make(source_id, target_id)
        return link

    def _make(self, source_id: str, target_id: str) -> SimLink:
        a, b = self._at(source_id), self._at(target_id)
        if self._fleet.coordinator is None and self.home in (a, b):
            return SimLink(source_id, target_id, 0.0, 0.0, 0.0)
        found = self._fleet.links.between(a, b)
        if found is None:
            raise FleetError(f"a route over {source_id} → {target_id}, which cannot be reached")
        bits = 8 * link_bytes_per_token(a, b, self._model)
        mbit_s = found.bandwidth_mbit_s
        token_s = 0.0 if mbit_s is None else bits / (mbit_s * 1e6)
        return SimLink(source_id, target_id, found.latency_ms / 1e3, token_s, self._message_s)

    def _at(self, place_id: str) -> Located:
        return self.home if place_id == self.home.id else self._fleet.by_id[place_id]

    def send_decodes(self, done: list[Visit], now: float) -> None:
        """Decode steps leave the stages they have visited, one message each.

        Written out and by runs of steps over the same link: the simulator spends most of its time
        here.
        """
        next_seq = self.next_seq
        link: SimLink | None = None
        start = wait_s = 0.0
        sent = 0
        for visit in done:
            after = visit.next
            if after is None:
                self.send_home(visit.running, now)
                continue
            if after.link is not link:
                if link is not None:
                    link.close_run(now, start, wait_s, sent)
                link = after.link
                inbox = after.worker.decodes_in
                start, step_s, latency_s = link.free_at, link.decode_s, link.latency_s
                wait_s, sent = 0.0, 0
                if start < now:
                    start = now
                arrival = start + step_s + latency_s
                worker = after.worker
                if arrival < worker.wake_at:
                    worker.wake_at = arrival
                    heappush(self.heap, (arrival, next_seq(), WAKE, worker, None))
            wait_s += start - now
            start += step_s
            sent += 1
            inbox.append((start + latency_s, next_seq(), after))
        if link is not None:
            link.close_run(now, start, wait_s, sent)

    def send_decode(self, visit: Visit, now: float) -> None:
        """One decode step sets out from the coordinator."""
        link = visit.link
        arrival = link.send(now, link.decode_s)
        visit.worker.decodes_in.append((arrival, self.next_seq(), visit))
        self.wake(visit.worker, arrival)

    def send_frames(self, done: list[Visit], now: float) -> None:
        """Decode steps leave the stages they have visited, those to one place in one message."""
        home: dict[SimLink, list[tuple[RunningRequest, int]]] = {}
        for visit in done:
            running = visit.running
            if visit.next is None:
                assert running.home is not None
                home.setdefault(running.home, []).append((running, running.epoch))
        self.send_framed((visit.next for visit in done if visit.next is not None), now)
        for link, tokens in home.items():
            arrival = link.send(now, len(tokens) * (link.token_s + self._step_s) + self._message_s)
            self.push(arrival, HOMES, tokens)

    def send_framed(self, visits: Iterable[Visit], now: float) -> None:
        """Decode steps set out to their stages, those over the same link in one message."""
        links: dict[SimLink, list[Visit]] = {}
        for visit in visits:
            links.setdefault(visit.link, []).append(visit)
        next_seq = self.next_seq
        for link, together in links.items():
            arrival = link.send(
                now, len(together) * (link.token_s + self._step_s) + self._message_s
            )
            worker = together[0].worker
            worker.decodes_in += [(arrival, next_seq(), visit) for visit in together]
            self.wake(worker, arrival)

    def wake(self, worker: Worker, arrival: float) -> None:
        """Let a worker that sleeps look at its inbox then."""
        if arrival < worker.wake_at:
            worker.wake_at = arrival
            heappush(self.heap, (arrival, self.next_seq(), WAKE, worker, None))

    def send_prompt(self, visit: Visit, now: float) -> None:
        """A prompt or chunk sets out, after earlier ones and any decode steps that go first."""
        link = visit.link
        if self._decode_first and (link.prompts or link.free_at > now):
            link.prompts.append((now, visit))
            if not link.is_scheduled:
                link.is_scheduled = True
                self.push(max(link.free_at, now), FREE, link)
        else:
            self._transmit(link, visit, now)

    def link_is_free(self, link: SimLink, now: float) -> None:
        """Send the prompt that waited longest, unless decode steps have taken the link again."""
        link.is_scheduled = False
        if link.free_at <= now:
            queued, visit = link.prompts.popleft()
            link.wait_s += now - queued
            link.max_wait_s = max(link.max_wait_s, now - queued)
            self._transmit(link, visit, now)
        if link.prompts:
            link.is_scheduled = True
            self.push(max(link.free_at, now), FREE, link)

    def _transmit(self, link: SimLink, visit: Visit, now: float) -> None:
        arrival = link.send(now, (visit.end - visit.first) * link.token_s + self._message_s)
        visit.worker.prompts_in.append((arrival, self.next_seq(), visit))
        self.wake(visit.worker, arrival)

    def send_home(self, running: RunningRequest, now: float) -> None:
        """A token goes to the coordinator."""
        link = running.home
        assert link is not None
        arrival = link.send(now, link.decode_s)
        self.push(arrival, HOME, running, running.epoch)

    def forget(self, worker: Worker) -> None:
        """Messages to a worker that is gone are lost."""
        worker.decodes_in = []
        worker.prompts_in = []
        worker.wake_at = math.inf
