"""How does a placement serve a workload? One event loop on a heap, one event per stage pass.

No event is kept once it has happened; same arguments, same report.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from heapq import heappop, heappush

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.simulate.coordinator import SimulatedCoordinator
from scheduler.simulate.dispatch.router import Router
from scheduler.simulate.network import CHANGE, DONE, FREE, HOME, HOMES, ISSUE, MARK, WAKE, Network
from scheduler.simulate.options import SimOptions
from scheduler.simulate.pass_cost import HELIX_COPY_BYTES_S, PassCost
from scheduler.simulate.passes import make_worker, pass_seconds
from scheduler.simulate.report import SimReport, link_use, node_use
from scheduler.simulate.work import Work
from scheduler.simulate.world import Worker

FAR = 1 << 62


def simulate(
    fleet: Fleet,
    model: ModelShape,
    placement: Placement,
    router: Router,
    work: Work,
    options: SimOptions | None = None,
    costs: Mapping[str, PassCost] | None = None,
    replan: Callable[[frozenset[str]], None] | None = None,
) -> SimReport:
    """Serve `work` on a placement, each request on the route that `router` chooses for it.

    The router is used up: it keeps its loads. ``costs`` replaces the cost model of the machines it
    names. ``replan`` is told who is present whenever that changes, before anybody waiting is let
    in: the place to give the router new weights.
    """
    options = options or SimOptions()
    return Simulation(fleet, model, placement, router, work, options, costs, replan).run()


class Simulation:
    """One run. A benchmark of other routers or queues has its own network and coordinator."""

    network_type = Network
    coordinator_type = SimulatedCoordinator

    def __init__(
        self,
        fleet: Fleet,
        model: ModelShape,
        placement: Placement,
        router: Router,
        work: Work,
        options: SimOptions,
        costs: Mapping[str, PassCost] | None = None,
        replan: Callable[[frozenset[str]], None] | None = None,
    ) -> None:
        self.options = options
        self.network = self.network_type(fleet, model, options)
        self._copy_s = (
            model.activation_bytes_per_token * sum(1 / rate for rate in HELIX_COPY_BYTES_S)
            if options.helix_rules
            else 0.0
        )
        self.workers = {
            shard.machine_id: make_worker(
                fleet.by_id[shard.machine_id], model, shard.layers, options, costs or {}
            )
            for shard in placement
        }
        seen: set[str] = set()
        for change in sorted(options.changes, key=lambda change: change.at_s):
            if change.kind == "join" and change.machine_id not in seen:
                self.workers[change.machine_id].is_present = False
                router.set_present(change.machine_id, False)
            seen.add(change.machine_id)
            self.network.push(change.at_s, CHANGE, change)
        self.coordinator = self.coordinator_type(
            self.network, self.workers, router, work, options, replan
        )
        self._frames = options.frames
        self.events = self.messages = 0

    def run(self) -> SimReport:
        """Let everything happen, in order of time."""
        options, network, coordinator = self.options, self.network, self.coordinator
        heap = network.heap
        end_s = options.warmup_s + options.duration_s
        if options.warmup_s:
            network.push(options.warmup_s, MARK)
        network.push(end_s, MARK)
        finish_pass, start_pass, token = self._finish_pass, self._start_pass, coordinator.token
        events = 0
        while True:
            now, _, kind, a, b = heappop(heap)
            events += 1
            if kind == DONE:
                if a.epoch == b:
                    finish_pass(a, now)
                    start_pass(a, now)
            elif kind == WAKE:
                if now == a.wake_at:
                    start_pass(a, now)
            elif kind == HOME:
                token(a, b, now)
            elif kind == HOMES:
                coordinator.tokens(a, now)
            elif kind == FREE:
                network.link_is_free(a, now)
            elif kind == ISSUE:
                coordinator.issue(a, now)
            elif kind == CHANGE:
                coordinator.change(a, now)
            elif now >= end_s:
                break
            else:
                self._clear_counts(now)
        self.events = events
        return self._report(end_s)

    def _start_pass(self, worker: Worker, now: float) -> None:
        """Take up what has arrived and run the next batch; with nothing to run, sleep."""
        former = worker.former
        inbox = worker.decodes_in
        if inbox:
            inbox.sort()
            if inbox[-1][0] <= now:
                worker.decodes_in = []
            else:
                arrived = bisect_right(inbox, (now, FAR))
                worker.decodes_in = inbox[arrived:]
                del inbox[arrived:]
            if self.coordinator.has_dead:
                inbox = [entry for entry in inbox if not entry[2].is_dead]
            if inbox:
                former.add_decodes([entry[2] for entry in inbox])
        if worker.prompts_in:
            self._take_prompts(worker, now)
        batch = former.form()
        if batch is None:
            worker.wake_at = math.inf
            if worker.decodes_in:
                worker.wake_at = worker.decodes_in[0][0]
            if worker.prompts_in:
                worker.wake_at = min(worker.wake_at, worker.prompts_in[0][0])
            if worker.wake_at < math.inf:
                self.network.push(worker.wake_at, WAKE, worker)
            return
        worker.wake_at = -math.inf
        worker.batch = batch
        seconds = pass_seconds(worker, batch, self._copy_s)
        worker.busy_s += seconds
        worker.passes += 1
        worker.decodes_run += len(batch.decodes)
        worker.prefill_run += batch.prefill_tokens
        network = self.network
        heappush(network.heap, (now + seconds, network.next_seq(), DONE, worker, worker.epoch))

    def _take_prompts(self, worker: Worker, now: float) -> None:
        inbox = worker.prompts_in
        inbox.sort()
        arrived = bisect_right(inbox, (now, FAR))
        for entry in inbox[:arrived]:
            if not entry[2].base.is_dead:
                worker.former.add_prefill(entry[2])
        del inbox[:arrived]

    def _finish_pass(self, worker: Worker, now: float) -> None:
        """Send on what the batch has produced."""
        batch = worker.batch
        assert batch is not None
        network = self.network
        has_dead = self.coordinator.has_dead
        if has_dead:
            batch.decodes = [visit for visit in batch.decodes if not visit.is_dead]
        if self._frames:
            network.send_frames(batch.decodes, now)
        else:
            network.send_decodes(batch.decodes, now)
        for visit in batch.prefills:
            base = visit.base
            if base.is_dead:
                continue
            running = visit.running
            if base.next is not None:
                network.send_prompt(base.next.prompt(visit.first, visit.end), now)
            elif visit.end == running.prompt_tokens:
                network.send_home(running, now)

    def _clear_counts(self, now: float) -> None:
        """The warm-up is over: count from here. What a pass or message has begun counts in full."""
        self.coordinator.clear_counts(now)
        for worker in self.workers.values():
            worker.busy_s = 0.0
            worker.passes = worker.decodes_run = worker.prefill_run = 0
        for link in self.network.links.values():
            self.messages += link.clear_counts()

    def _report(self, end_s: float) -> SimReport:
        options, network, counted = self.options, self.network, self.coordinator.counts
        window_s = end_s - options.warmup_s
        links = sorted(network.links.values(), key=lambda link: -link.wait_s)
        return SimReport(
            decode_tokens_per_s=counted.decode.count / window_s,
            prompt_tokens_per_s=counted.prompt_tokens / window_s,
            goodput_tokens_per_s=counted.good_tokens / window_s,
            first_token=counted.first_token.summary(),
            prompt=counted.prompt.summary(),
            decode=counted.decode.summary(),
            finished_requests=counted.finished,
            mean_in_flight=self.coordinator.mean_in_flight(end_s),
            waiting_at_end=len(self.coordinator.waiting),
            refusals=counted.refusals,
            restarts=counted.restarts,
            dropped=counted.dropped,
            nodes=tuple(node_use(worker, window_s) for worker in self.workers.values()),
            links=tuple(link_use(link, window_s) for link in links),
            events=self.events,
            messages=self.messages + sum(link.messages + link.decodes for link in links),
        )
