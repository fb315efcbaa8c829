"""Does the simulator say what the running engine does?

Real stages in processes of their own, over real streams, with a small model. So that two cores can
stand for several machines of different speed, a stage computes its layers and then sleeps until the
pass has lasted as long as on the machine that it stands for (three times its own time, or more);
links between regions have their latency. Pass times and message times are measured at two first
loads, one of them a request at a time, and fitted. Then another load is run, the arrivals and
routes of its requests are recorded and replayed in the simulator: once on the recorded routes,
which tries the cost model, and where there is a choice once more with the router choosing by
itself.

At the engine's own speed nothing can be said to 5 % on a machine that others share: its passes are
a fifth faster or slower from one minute to the next.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, mean
from typing import NamedTuple

from benchmarks.engine.rig.chain import DOMAIN, signer
from benchmarks.engine.rig.rig import Load, Rig
from benchmarks.engine.rig.steps import Step
from benchmarks.scheduler.fit import FittedCost, PassSample, fit
from benchmarks.scheduler.fixed_router import FixedRouter
from benchmarks.table import Row
from client.pipeline.streams import Streams
from core.protocol.types import LayerRange
from core.runtime.network.channel import StreamIdentity
from devnet.models.tiny_models import write_tiny_model
from scheduler.fleet.fleet import (
    Coordinator,
    Fleet,
    Link,
    Links,
    Machine,
    ModelShape,
    Placement,
    Shard,
)
from scheduler.fleet.workload import Arrival
from scheduler.flow.max_flow import max_flow
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.dispatch.router import Route, Router
from scheduler.simulate.options import SimOptions
from scheduler.simulate.report import SimReport
from scheduler.simulate.simulation import simulate

LAYERS, HIDDEN = 12, 256
CHUNK_TOKENS = 128
WARMUP_S, WINDOW_S = 8.0, 32.0
CALIBRATION_S, ALONE_S = 15.0, 6.0
SEEDS = (1, 2, 3)
TOLERANCE = 0.05
REQUESTER_KEY = 999
KV_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Config:
    """Stages by layers with their pass times (ms: in all, a prompt token, a decode step, a position
    read), and the load.

    `to_ms` is the one-way latency of what is sent to each stage from another region. Without
    `requests_per_s`, `streams` requests run at all times. `router` chooses between replicas:
    pipelines in `turns` or by `weights`, or hops by `flow`.
    """

    name: str
    layers: tuple[tuple[int, int], ...]
    pace_ms: tuple[tuple[float, float, float, float], ...]
    requests_per_s: float | None = None
    streams: int = 12
    prompt_tokens: tuple[int, int] = (32, 200)
    new_tokens: tuple[int, int] = (16, 64)
    to_ms: tuple[float, ...] = ()
    router: str = ""

    @property
    def routes(self) -> list[tuple[int, ...]]:
        """Every pipeline through the stages, in order of layers."""
        found: list[tuple[int, ...]] = [()]
        while any(self._end(route) < LAYERS for route in found):
            found = [
                (*route, i)
                for route in found
                for i, (start, _) in enumerate(self.layers)
                if start == self._end(route)
            ]
        return found

    def _end(self, route: Sequence[int]) -> int:
        return self.layers[route[-1]][1] if route else 0


ALL = (100.0, 0.80, 4.0, 0.009)
EQUAL = (36.0, 0.30, 1.5, 0.003)
THIRDS = ((0, 4), (4, 8), (8, 12))
TWICE = ((0, 6), (0, 6), (6, 12), (6, 12))
FAST, SLOW = (36.0, 0.30, 1.5, 0.003), (60.0, 0.45, 2.4, 0.006)
CONFIGS = (
    Config("equal stages, always 12 requests", THIRDS, (EQUAL,) * 3),
    Config(
        "stages of four speeds, always 12 requests",
        ((0, 2), (2, 6), (6, 9), (9, 12)),
        ((24.0, 0.15, 1.2, 0.003), (54.0, 0.45, 2.4, 0.006), EQUAL, (45.0, 0.40, 2.0, 0.004)),
    ),
    Config("two regions 60 ms apart, always 12 requests", THIRDS, (EQUAL,) * 3, to_ms=(60, 60, 0)),
    Config("one request at a time", THIRDS, (EQUAL,) * 3, streams=1),
    Config(
        "Poisson, half of what it can do, long prompts",
        THIRDS,
        (EQUAL,) * 3,
        requests_per_s=0.9,
        prompt_tokens=(64, 400),
    ),
    Config("Poisson, near saturation", THIRDS, (EQUAL,) * 3, requests_per_s=2.0),
    Config("replicas, pipelines in turn", TWICE, (FAST, SLOW, FAST, SLOW), 1.4, router="turns"),
    Config("replicas, by flow", TWICE, (FAST, SLOW, FAST, SLOW), 1.4, router="flow"),
    Config("replicas, pipelines 2 : 1", TWICE, (FAST, SLOW, FAST, SLOW), 1.4, router="weights"),
    # Not a closed loop: where there is one stage, the next request would always come just after a
    # pass has begun.
    Config("one stage, Poisson", ((0, 12),), (ALL,), requests_per_s=0.6),
)
QUICK = {
    "CONFIGS": (
        Config(
            "one stage",
            ((0, 12),),
            ((2.0, 0.01, 0.1, 0.0),),
            prompt_tokens=(8, 16),
            new_tokens=(4, 8),
        ),
    ),
    "WARMUP_S": 0.2,
    "WINDOW_S": 0.5,
    "CALIBRATION_S": 0.5,
    "ALONE_S": 0.3,
    "SEEDS": (1,),
}


@dataclass
class Served:
    """One request of a run: when it came, its lengths, its pipeline, when its tokens came."""

    at_s: float
    prompt_tokens: int
    new_tokens: int
    route: tuple[int, ...]
    order_hash: str
    began_s: float
    """On the machine's monotonic clock, as the steps of its stages are."""
    times: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Figures:
    """What is compared."""

    decode_tokens_per_s: float
    prompt_s: float
    decode_s: float

    def errors(self, real: Figures) -> tuple[float, float, float]:
        """By what share of the real figures these differ."""
        return (
            self.decode_tokens_per_s / real.decode_tokens_per_s - 1,
            self.prompt_s / real.prompt_s - 1,
            self.decode_s / real.decode_s - 1,
        )


@dataclass(frozen=True)
class Outcome:
    """The engine's figures of one run, and the simulator's: on its routes, and with a router of its
    own.
    """

    real: Figures
    replayed: Figures
    routed: Figures | None


def rows() -> list[Row]:
    """One row a configuration, over all seeds."""
    found = []
    for config in CONFIGS:
        outcomes, held_out = asyncio.run(measure(config))
        found.append(_row(config, outcomes, held_out))
        print(f"  {found[-1].item}: {found[-1].ours}", file=sys.stderr, flush=True)
    return found


def _row(config: Config, outcomes: Sequence[Outcome], held_out: float) -> Row:
    replayed = [outcome.replayed.errors(outcome.real) for outcome in outcomes]
    routed = [o.routed.errors(o.real) for o in outcomes if o.routed is not None]
    tried = [replayed, routed] if routed else [replayed]
    text = "; own routes ".join(
        ", ".join(
            f"{what} {mean(e[i] for e in errors):+.1%}"
            for i, what in enumerate(("tokens/s", "prompt", "decode"))
        )
        for errors in tried
    )
    worst = max(abs(mean(e[i] for e in errors)) for errors in tried for i in range(3))
    real = [outcome.real for outcome in outcomes]
    return Row(
        f"simulated as served: {config.name}",
        f"each within {TOLERANCE:.0%}",
        text,
        f"engine: {mean(r.decode_tokens_per_s for r in real):.0f} tokens/s, prompt "
        f"{mean(r.prompt_s for r in real):.2f} s, "
        f"decode {mean(r.decode_s for r in real) * 1e3:.0f} ms",
        f"fit of passes {held_out:.1%}",
        worst <= TOLERANCE,
    )


async def measure(config: Config) -> tuple[list[Outcome], float]:
    """The engine and its simulation, for every seed; and the error of the fitted passes on those
    left out.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-validation-") as scratch:
        model = write_tiny_model(
            Path(scratch), "llama", layers=LAYERS, hidden=HIDDEN, vocab=2000, context=2048
        )
        rig = Rig(
            model, (), kv_bytes=KV_BYTES, peer=False, layers=config.layers, emulate=config.pace_ms
        )
        async with rig:
            endpoints = rig.endpoints(None, config.to_ms or [0.0] * len(config.layers))
            streams = Streams(StreamIdentity(signer(REQUESTER_KEY), DOMAIN))
            world = World(config)
            try:
                await _run(rig, endpoints, streams, config, world, seed=0, seconds=CALIBRATION_S)
                loaded = [steps for steps, _ in await rig.take()]
                one_by_one = replace(config, requests_per_s=None, streams=1, new_tokens=(2, 2))
                alone = await _run(
                    rig, endpoints, streams, one_by_one, world, seed=0, seconds=ALONE_S
                )
                steps = [[*a, *b] for a, (b, _) in zip(loaded, await rig.take(), strict=True)]
                held_out = world.learn_passes(steps)
                world.learn_messages(steps)
                world.learn_opening(alone, steps)
                outcomes = []
                for seed in SEEDS:
                    served = await _run(
                        rig,
                        endpoints,
                        streams,
                        config,
                        world,
                        seed=seed,
                        seconds=WARMUP_S + WINDOW_S,
                    )
                    await rig.take()
                    outcomes.append(world.compare(served))
            finally:
                await streams.close()
    return outcomes, held_out


async def _run(
    rig: Rig,
    endpoints: Sequence[str],
    streams: Streams,
    config: Config,
    world: World,
    *,
    seed: int,
    seconds: float,
) -> list[Served]:
    """Serve for so long; then what runs is let run to its end."""
    draw, router = random.Random(seed), world.router(config.router)
    served: list[Served] = []
    running: set[asyncio.Task[None]] = set()
    started = time.monotonic()

    async def serve_one() -> None:
        prompt, new = draw.randint(*config.prompt_tokens), draw.randint(*config.new_tokens)
        route = router.choose(prompt)
        assert route is not None, "the caches of the rig are larger than its loads"
        stages = tuple(world.number[shard.machine_id] for shard in route.stages)
        load = Load(1, 1, new, prompt)
        client = await rig.client(load, endpoints, route=stages, streams=streams)
        now = time.monotonic()
        one = Served(now - started, prompt, new, stages, client.order_hash, now)
        served.append(one)
        outcome = await client.job.run()
        for error in outcome.unfinished.values():
            raise error
        one.times = [at - started for at in client.times[0]]
        await client.job.close()
        router.finish(route)

    async def stream() -> None:
        while time.monotonic() - started < seconds:
            await serve_one()

    if config.requests_per_s is None:
        await asyncio.gather(*(stream() for _ in range(config.streams)))
    else:
        at_s = draw.expovariate(config.requests_per_s)
        while at_s < seconds:
            await asyncio.sleep(max(0.0, started + at_s - time.monotonic()))
            running.add(asyncio.create_task(serve_one()))
            at_s += draw.expovariate(config.requests_per_s)
        await asyncio.gather(*running)
    return sorted(served, key=lambda one: one.at_s)


class World:
    """A configuration as the scheduler knows it, with what was measured of it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.names = names = [f"stage-{i}" for i in range(len(config.layers))]
        self.number = {name: i for i, name in enumerate(names)}
        self.machines = [
            Machine(
                name,
                1 << 40,
                1e3,
                1e3,
                region=name,
                kv_tokens=1 << 20,
                max_concurrent=256,
                tau_ms_per_layer=pace[0] / (end - start),
            )
            for name, pace, (start, end) in zip(names, config.pace_ms, config.layers, strict=True)
        ]
        self.home_s = (config.to_ms or (0.0,))[0] / 1e3
        self.model = ModelShape(
            layers=LAYERS,
            layer_bytes=1,
            embedding_bytes=0,
            head_bytes=0,
            tied=False,
            hidden=1,
            flops_per_layer_per_token=1.0,
            activation_bytes_per_token=4 * HIDDEN,
            token_bytes=4,
        )
        self.placement: Placement = tuple(
            Shard(name, LayerRange(*span)) for name, span in zip(names, config.layers, strict=True)
        )
        self.costs: dict[str, FittedCost] = {}
        self.message_s = self.step_s = self.row_s = self.opening_s = self.sampling_s = 0.0
        self.fleet = self._fleet()

    def router(self, kind: str) -> Router:
        """A fresh router. Caches are never short here."""
        shards = {shard.machine_id: shard for shard in self.placement}
        kv = KvEstimate(self.fleet, self.model, self.placement, high_water=1.0, output_tokens=64)
        if kind == "flow":
            links = max_flow(self.fleet, self.model, self.placement).links
            return IwrrRouter.of(
                self.fleet, self.model, self.placement, links, by_load=False, output_tokens=64
            )
        lines = [tuple(shards[f"stage-{i}"] for i in route) for route in self.config.routes]
        # Disjoint pipelines: of the first replicas, and of the last.
        disjoint = lines[:1] if len(lines) == 1 else [lines[0], lines[-1]]
        return FixedRouter(disjoint, kv, weights=[2.0, 1.0] if kind == "weights" else None)

    def learn_passes(self, steps: Sequence[Sequence[Step]]) -> float:
        """Fit each stage's passes; the mean error on those that were left out."""
        errors = []
        for shard, taken in zip(self.placement, steps, strict=True):
            layers = len(shard.layers)
            samples = [
                PassSample(
                    layers, step.rows - step.decodes, step.decodes, step.context, 1e3 * step.took_s
                )
                for step in taken
            ]
            found = fit(samples)
            self.costs[shard.machine_id] = found.cost
            errors.append(found.held_out_error)
        return mean(errors)

    def learn_messages(self, steps: Sequence[Sequence[Step]]) -> None:
        """What a frame costs between the end of a pass and the next stage's, where that stage was
        idle.

        A line over the steps of decoding frames, which are requests to look up and answer for;
        another over the rows of prompts, which are bytes. What the way from the last stage to the
        first takes more is sampling; where there is no other way, all of it is a message.
        """
        links_s = [ms / 1e3 for ms in self.config.to_ms] or [0.0] * len(self.names)
        routes = self.config.routes
        hops = {(a, b) for route in routes for a, b in pairwise(route)}
        frames = [frame for hop in hops for frame in _frames(*hop, steps, links_s)]
        decodes = [(frame.rows, frame.gap_s) for frame in frames if not frame.is_prompt]
        prompts = [(frame.rows, frame.gap_s) for frame in frames if frame.is_prompt]
        ways = {(route[-1], route[0]) for route in routes}
        home = [frame for way in ways for frame in _frames(*way, steps, links_s, is_home=True)]
        tokens = [(frame.rows, frame.gap_s) for frame in home]
        self.message_s, self.step_s = _line(decodes or tokens)
        self.sampling_s = max(
            0.0, mean(gap - self.message_s - self.step_s * count for count, gap in tokens)
        )
        if prompts:
            rows, gaps = zip(*prompts, strict=True)
            self.row_s = max(0.0, mean(gaps) - self.message_s) / mean(rows)
        self.fleet = self._fleet()

    def learn_opening(self, alone: Sequence[Served], steps: Sequence[Sequence[Step]]) -> None:
        """What passes between asking an idle pipeline and its first pass: a prompt is submitted,
        checked and booked.
        """
        began = {
            (first, step.job): step.began_s
            for first in {route[0] for route in self.config.routes}
            for step in steps[first]
            if step.prompts and not step.context
        }
        waits = [
            began[key] - one.began_s
            for one in alone
            if (key := (one.route[0], one.order_hash)) in began
        ]
        self.opening_s = mean(waits) - self.message_s

    def _fleet(self) -> Fleet:
        """Links have their latency, and the rate at which rows of prompts were seen to come
        through.
        """
        to_ms = self.config.to_ms or (0.0,) * len(self.names)
        first = next(i for i, (start, _) in enumerate(self.config.layers) if start == 0)
        mbit_s = (
            8 * self.model.activation_bytes_per_token / self.row_s / 1e6 if self.row_s else None
        )
        pairs = {
            (a, b): Link(to_ms[i], mbit_s)
            for a in self.names
            for i, b in enumerate(self.names)
            if a != b
        }
        # Tokens come home to the first stage; what is said to the client crosses no link.
        for name, (_, end) in zip(self.names, self.config.layers, strict=True):
            pairs["home", name] = Link(0.0)
            pairs[name, "home"] = Link(to_ms[first] if end == LAYERS else 0.0)
        return Fleet(self.machines, Links(pairs, {}), Coordinator("home", region="home"))

    def compare(self, served: Sequence[Served]) -> Outcome:
        """The same arrivals simulated, beside what happened."""
        routed = None
        if len(self.config.routes) > 1:
            routed = self._simulated(served, self.router(self.config.router))
        replay = Replay(self, [one.route for one in served])
        return Outcome(_real(served), self._simulated(served, replay), routed)

    def _simulated(self, served: Sequence[Served], router: Router) -> Figures:
        trace = [
            Arrival(one.at_s + self.opening_s, one.prompt_tokens, one.new_tokens) for one in served
        ]
        options = SimOptions(
            warmup_s=WARMUP_S,
            duration_s=WINDOW_S,
            chunk_tokens=CHUNK_TOKENS,
            frames=True,
            decode_first=False,
            miner_rules=True,
            message_s=self.message_s,
            step_s=self.step_s,
            coordinator_s=self.sampling_s,
        )
        report: SimReport = simulate(
            self.fleet, self.model, self.placement, router, trace, options, self.costs
        )
        prompt_s = report.prompt.mean_s - self.home_s + self.opening_s
        return Figures(report.decode_tokens_per_s, prompt_s, report.decode.mean_s)


class Frame(NamedTuple):
    """Rows that went from one stage to the next, and the seconds between the passes that are not
    the link's latency.
    """

    is_prompt: bool
    rows: int
    gap_s: float


def _frames(
    here: int,
    there: int,
    steps: Sequence[Sequence[Step]],
    links_s: Sequence[float],
    *,
    is_home: bool = False,
) -> list[Frame]:
    """Frames of decode steps alone or of one prompt alone that came to a stage that stood idle
    meanwhile.

    `links_s` is what the way to each stage takes, which is not theirs. `is_home`: from the last
    stage to the first, where every request's next position follows.
    """
    found = []
    waiting = {_content(step): step for step in steps[there]}
    ends = sorted(step.ended_s for step in steps[there])
    for step in steps[here]:
        job, rows, decodes, context = _content(step)
        if step.prompts and (is_home or step.prompts > 1 or decodes):
            continue
        after = waiting.get((job, rows, decodes, context + decodes * is_home))
        if after is None:
            continue
        before = bisect_left(ends, after.ended_s) - 1
        if before >= 0 and ends[before] <= step.ended_s < after.began_s:
            gap_s = after.began_s - step.ended_s - links_s[there]
            found.append(Frame(bool(step.prompts), step.rows, gap_s))
    return found


def _content(step: Step) -> tuple[str, int, int, int]:
    return step.job, step.rows, step.decodes, step.context


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds at none and for each more; nothing for each where there is but one count."""
    if len({count for count, _ in points}) < 2:
        return mean([gap for _, gap in points] or [0.0]), 0.0
    fitted = linear_regression(*zip(*points, strict=True))
    return max(0.0, fitted.intercept), max(0.0, fitted.slope)


class Replay:
    """Gives requests the routes that they had, in order of arrival."""

    def __init__(self, world: World, routes: Iterable[tuple[int, ...]]) -> None:
        self.kv = KvEstimate(world.fleet, world.model, world.placement, high_water=1.0)
        self._routes, self._placement = iter(list(routes)), world.placement

    def choose(self, prompt_tokens: int) -> Route | None:
        route = Route(prompt_tokens)
        route.stages = [self._placement[i] for i in next(self._routes)]
        self.kv.add(route.stages, prompt_tokens)
        return route

    def note_step(self, route: Route) -> None:
        pass

    def finish(self, route: Route) -> None:
        self.kv.remove(route.stages, route.prompt_tokens)

    def set_present(self, machine_id: str, is_present: bool) -> None:
        pass


def _real(served: Sequence[Served]) -> Figures:
    """Counted as the simulator counts: what came in the window."""
    end_s = WARMUP_S + WINDOW_S
    gaps, prompts = [], []
    for one in served:
        if WARMUP_S <= one.times[0] < end_s:
            prompts.append(one.times[0] - one.at_s)
        gaps += [b - a for a, b in pairwise(one.times) if WARMUP_S <= b < end_s]
    return Figures(len(gaps) / WINDOW_S, mean(prompts), mean(gaps))
