"""How does a placement serve when its stages queue as miners do?

The product's simulator with the miners' own line-up in place of its batch formers: microbatches by
tickets, one chunk of a prompt at a time, and a token's way home that ends at the first stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from benchmarks.scheduler.measure.miner_line import MAX_ROWS, MinerLine
from core.batching import choose
from core.batching.ring import MicrobatchChoice
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement, Shard
from scheduler.simulate.coordinator import SimulatedCoordinator
from scheduler.simulate.dispatch.router import Router
from scheduler.simulate.options import SimOptions
from scheduler.simulate.pass_cost import PassCost
from scheduler.simulate.simulation import Simulation
from scheduler.simulate.work import Work
from scheduler.simulate.world import RunningRequest, Visit, Worker

#: Between the end of a chunk and when the next one joins the line.
CHUNK_GAP_S = 0.0005


class MinerCoordinator(SimulatedCoordinator):
    """Steps are at their first stages as soon as tokens are: in a ring one message says both."""

    def _enter(self, running: RunningRequest, stage: Shard) -> bool:
        entered = super()._enter(running, stage)
        if entered:  # a miner tells a decode step from the start of a prompt by its position
            running.visits[-1].first, running.visits[-1].end = 1, 2
        return entered

    def _send_together(self, visits: Iterable[Visit], now: float) -> None:
        for visit in visits:
            arrival = now + visit.link.latency_s
            visit.worker.decodes_in.append((arrival, self.network.next_seq(), visit))
            self.network.wake(visit.worker, arrival)

    def _leave(self, running: RunningRequest) -> None:
        super()._leave(running)
        for visit in running.visits:
            visit.worker.former.cancel(running.id)


class MinerSimulation(Simulation):
    """One run. Miners cut prompts, send frames, and have links that are first come, first served:
    raises FleetError for options that say otherwise.
    """

    coordinator_type = MinerCoordinator

    def __init__(
        self,
        fleet: Fleet,
        model: ModelShape,
        placement: Placement,
        router: Router,
        work: Work,
        options: SimOptions,
        costs: Mapping[str, PassCost] | None = None,
    ) -> None:
        if options.chunk_tokens is None or not options.frames or options.decode_first:
            raise FleetError("miners cut prompts, send frames, and let no step pass on a link")
        super().__init__(fleet, model, placement, router, work, options, costs)
        for worker in self.workers.values():
            worker.former = line_of(worker.layers.start == 0, options)

    def _finish_pass(self, worker: Worker, now: float) -> None:
        super()._finish_pass(worker, now)
        assert isinstance(worker.former, MinerLine) and worker.batch is not None
        worker.prompts_in += [
            (now + CHUNK_GAP_S, self.network.next_seq(), chunk)
            for chunk in worker.former.after(worker.batch)
        ]


def line_of(gated: bool, options: SimOptions) -> MinerLine:
    """A miner's line; `gated` is a stage where rings begin."""
    chunk = options.chunk_tokens or 0
    return MinerLine(
        gated=gated,
        chunk_tokens=chunk,
        budget_tokens=options.budget_tokens or chunk,
        choose=microbatches,
    )


def microbatches(visits: Iterable[Visit]) -> MicrobatchChoice:
    """How many microbatches a ring's requests should be (`core.batching.ring`), as measured.

    One where the ring is a single stage: its next batch need not wait for anybody.
    """
    members = [visit.running for visit in visits]
    one = members[0]
    if len(one.visits) == 1:
        return MicrobatchChoice(1, min(len(members), MAX_ROWS))
    context = sum(running.context for running in members) / len(members)
    home = one.home
    latency_s = sum(visit.link.latency_s + visit.link.decode_s for visit in one.visits)
    latency_s += home.latency_s + home.decode_s if home is not None else 0.0
    return choose(
        [_decode_seconds(visit.worker, context) for visit in one.visits],
        latency_s,
        len(members),
        max_rows=MAX_ROWS,
    )


def _decode_seconds(worker: Worker, context: float) -> Callable[[float], float]:
    def seconds(rows: float) -> float:
        found = worker.cost.seconds(worker.many_layers, 0, round(rows), round(rows * context), 0)
        if worker.head is not None:
            found += max(rows * worker.head[0], worker.head[1])
        return found * worker.slowness

    return seconds
