"""How are requests let in and stepped on, also when machines come and go?"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from scheduler.fleet.fleet import Shard
from scheduler.fleet.workload import Arrival
from scheduler.simulate.dispatch.router import Router
from scheduler.simulate.histogram import Histogram
from scheduler.simulate.network import ISSUE, Network
from scheduler.simulate.options import FleetChange, SimOptions
from scheduler.simulate.work import ClosedLoop, Work
from scheduler.simulate.world import RunningRequest, Visit, Worker


@dataclass
class SimCounts:
    """What a run came to since `since_s`: tokens, requests, and seconds in histograms."""

    since_s: float = 0.0
    first_token: Histogram = field(default_factory=Histogram)
    prompt: Histogram = field(default_factory=Histogram)
    decode: Histogram = field(default_factory=Histogram)
    prompt_tokens: int = 0
    good_tokens: int = 0
    finished: int = 0
    refusals: int = 0
    restarts: int = 0
    dropped: int = 0
    _area: float = 0.0  # request-seconds in flight, until `_area_at_s`
    _area_at_s: float | None = None

    def held(self, running: int, now: float) -> None:
        """So many requests were in flight until now."""
        before = self.since_s if self._area_at_s is None else self._area_at_s
        self._area += running * (now - before)
        self._area_at_s = now

    def mean_in_flight(self, now: float) -> float:
        """Admitted requests, averaged over time."""
        return self._area / (now - self.since_s) if now > self.since_s else 0.0


class SimulatedCoordinator:
    """Requests wait here in order until the router and every ledger on the route have room."""

    def __init__(
        self,
        network: Network,
        workers: dict[str, Worker],
        router: Router,
        work: Work,
        options: SimOptions,
        replan: Callable[[frozenset[str]], None] | None = None,
    ) -> None:
        self.replan = replan
        self.network = network
        self.workers = workers
        self.router = router
        self.options = options
        self.waiting: deque[RunningRequest] = deque()
        self.running: dict[int, RunningRequest] = {}
        self.made = 0
        self.changes_left = len(options.changes)
        self.has_dead = False
        #: Next steps of tokens that came home in one message, while it is unpacked.
        self._together: list[Visit] | None = None
        self._extra_step = 0 if options.helix_rules else 1
        self._draw = random.Random(options.seed)
        self._feed = work if isinstance(work, ClosedLoop) else None
        self._trace: Iterator[Arrival] = iter(() if isinstance(work, ClosedLoop) else work)
        self.counts = SimCounts()
        if self._feed is None:
            self._next_arrival()
        else:
            for i in range(self._feed.initial):
                network.push(i * self._feed.pause_s, ISSUE, self._drawn())

    def clear_counts(self, now: float) -> None:
        """Begin to count afresh (at the end of the warm-up)."""
        self.counts = SimCounts(now)

    def mean_in_flight(self, now: float) -> float:
        """Admitted requests, averaged over time since the counts began."""
        self.counts.held(len(self.running), now)
        return self.counts.mean_in_flight(now)

    def issue(self, arrival: Arrival, now: float) -> None:
        """A request arrives."""
        steps = arrival.output_tokens - self._extra_step
        self.made += 1
        self.waiting.append(RunningRequest(self.made, now, arrival.input_tokens, steps))
        if self._feed is None:
            self._next_arrival()
        self.admit(now)

    def _next_arrival(self) -> None:
        arrival = next(self._trace, None)
        if arrival is not None:
            self.network.push(arrival.at_s, ISSUE, arrival)

    def _drawn(self) -> Arrival:
        assert self._feed is not None
        return self._draw.choice(self._feed.lengths)

    def _maybe_feed(self, now: float) -> None:
        feed = self._feed
        if feed is not None and not self.waiting and self.router.kv.bottleneck() <= feed.fill:
            self.network.push(now + feed.pause_s, ISSUE, self._drawn())

    def admit(self, now: float) -> None:
        """Start those at the head of the line for whom there is room."""
        while self.waiting:
            running = self.waiting[0]
            route = self.router.choose(running.prompt_tokens)
            if route is not None:
                self.counts.held(len(self.running), now)
                running.route, running.visits = route, []
                if all(self._enter(running, stage) for stage in route.stages):
                    self.waiting.popleft()
                    self._start(running, now)
                    continue
                self._leave(running)
            self.counts.refusals += 1
            drops = self._feed is not None and self._feed.drops_refused
            if not drops and (self.running or self.changes_left):
                return
            self.waiting.popleft()  # alone and still no room: nothing that ends can ever help it
            self.counts.dropped += 1

    def _enter(self, running: RunningRequest, stage: Shard) -> bool:
        """Book the prompt's pages at a stage and append the visit; False when pages are short."""
        worker = self.workers[stage.machine_id]
        if not worker.ledger.try_reserve(running.id, running.context, len(stage.layers)):
            return False
        before = running.visits[-1] if running.visits else None
        whole = stage.layers == worker.layers
        worker.mixed |= not whole
        source_id = self.network.home.id if before is None else before.worker.id
        link = self.network.link(source_id, worker.id)
        visit = Visit(running, worker, link, None if whole else stage.layers)
        if before is not None:
            before.next = visit
        running.visits.append(visit)
        return True

    def _start(self, running: RunningRequest, now: float) -> None:
        self.running[running.id] = running
        if not running.has_token:
            running.issued_s = now
        running.home = self.network.link(running.visits[-1].worker.id, self.network.home.id)
        self.network.send_prompt(running.visits[0].prompt(0, running.prompt_tokens), now)

    def tokens(self, home: list[tuple[RunningRequest, int]], now: float) -> None:
        """Tokens of one message came home: their next steps set out together too."""
        together = self._together = []
        for running, epoch in home:
            self.token(running, epoch, now)
        self._together = None
        alive = (visit for visit in together if not visit.is_dead)
        self._send_together(alive, now + self.options.coordinator_s)

    def _send_together(self, visits: Iterable[Visit], now: float) -> None:
        self.network.send_framed(visits, now)

    def token(self, running: RunningRequest, epoch: int, now: float) -> None:
        """A token came home: count it, then send the next step or end the request."""
        if epoch != running.epoch:
            return
        options = self.options
        taken = now - running.issued_s
        if running.has_token:
            self.counts.decode.add(taken)
            if running.in_time and taken <= options.decode_limit_s:
                self.counts.good_tokens += 1
        else:
            running.has_token = True
            self.counts.prompt.add(taken)
            self.counts.first_token.add(now - running.arrived_s)
            running.in_time = now - running.arrived_s <= options.prompt_limit_s
            self._maybe_feed(now)
        if running.context == running.prompt_tokens:
            self.counts.prompt_tokens += running.prompt_tokens
        if running.remaining <= 0:
            self._finish(running, now)
            return
        running.remaining -= 1
        running.issued_s = now
        context = running.context = running.context + 1
        if context % options.page_tokens == 1 or options.page_tokens == 1:
            for visit in running.visits:
                if not visit.worker.ledger.try_grow(running.id, context):
                    self.restart(running, now)
                    return
        assert running.route is not None
        self.router.note_step(running.route)
        if self._together is None:
            self.network.send_decode(running.visits[0], now + options.coordinator_s)
        else:
            self._together.append(running.visits[0])

    def _finish(self, running: RunningRequest, now: float) -> None:
        self._leave(running)
        self.counts.held(len(self.running), now)
        del self.running[running.id]
        self.counts.finished += 1
        self._maybe_feed(now)
        self.admit(now)

    def _leave(self, running: RunningRequest) -> None:
        """Give back everything that a request holds."""
        assert running.route is not None
        self.router.finish(running.route)
        for visit in running.visits:
            visit.worker.ledger.release(running.id)

    def restart(self, running: RunningRequest, now: float) -> None:
        """Take a request off its route, to start first and again with what it has produced."""
        self._leave(running)
        self.counts.held(len(self.running), now)
        del self.running[running.id]
        self.counts.restarts += 1
        self.has_dead = True
        for visit in running.visits:
            visit.is_dead = True
            visit.worker.former.cancel(running.id)
        running.epoch += 1
        running.prompt_tokens = running.context
        running.route, running.visits = None, []
        self.waiting.appendleft(running)
        self.admit(now)

    def change(self, change: FleetChange, now: float) -> None:
        """A machine joins, leaves, crashes, or changes its speed."""
        self.changes_left -= 1
        worker = self.workers[change.machine_id]
        if change.kind == "speed":
            worker.slowness = 1 / change.factor
            return
        worker.is_present = change.kind == "join"
        self.router.set_present(worker.id, worker.is_present)
        if self.replan is not None:
            self.replan(frozenset(w.id for w in self.workers.values() if w.is_present))
        if change.kind == "crash":
            worker.epoch += 1
            self.network.forget(worker)
            lost = [r for r in self.running.values() if any(v.worker is worker for v in r.visits)]
            for running in reversed(lost):
                self.restart(running, now)
        self.admit(now)
