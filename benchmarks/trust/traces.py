"""How many chunks of a trace does this machine build and hash in a second?

    python -m benchmarks.trust.traces MODEL POSITIONS TIMES      measure here, print JSON

Each figure is a process of its own, so that it has the cores that it is said to have and no more:
C of ours on one core and on all, and numpy on one. The least time of several tries counts. Of one
core it is processor time, which what else the machine does hardly changes; of all cores only the
clock says how well they share, so that row wants an idle machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmarks.table import Row
from core.protocol.compiled import VARIABLE

MODELS, POSITIONS, TIMES = ("smollm",), (256, 768), 3
#: How many times as fast as numpy one core is, and all cores as one.
LEAST, LEAST_OF_ALL = 5.0, 1.5
STAGE, LAYERS = 1, 2
QUICK = {"MODELS": ("tiny",), "POSITIONS": (12,), "TIMES": 1}


@dataclass(frozen=True)
class Rate:
    """Chunks a second."""

    build: float
    tree: float

    @property
    def both(self) -> float:
        return 1 / (1 / self.build + 1 / self.tree)


def rows() -> list[Row]:
    """For each length of a request: one core against numpy, all cores against one."""
    return [row for model in MODELS for positions in POSITIONS for row in _rows(model, positions)]


def _rows(model: str, positions: int) -> Iterator[Row]:
    cores = sorted(os.sched_getaffinity(0))
    one = _apart(model, positions, cores[-1:], TIMES)
    in_numpy = _apart(model, positions, cores[-1:], 1, **{VARIABLE: ""})
    ratio = one.both / in_numpy.both
    item = f"{model}: trace of {positions} positions through {LAYERS} layers"
    yield Row(
        f"{item}, one core",
        f"≥ {LEAST:.0f} times numpy",
        f"{_said(one)}: {ratio:.1f} times",
        _said(in_numpy),
        f"{one.tree:,.0f} chunks/s: hashes alone",
        ratio >= LEAST,
    )
    if len(cores) > 1:
        every = _apart(model, positions, cores, TIMES)
        yield Row(
            f"{item}, {len(cores)} cores",
            f"≥ {LEAST_OF_ALL} times one core",
            f"{_said(every)}: {every.both / one.both:.2f} times",
            "–",
            f"{len(cores)} times",
            every.both >= LEAST_OF_ALL * one.both,
        )


def _said(rate: Rate) -> str:
    return f"{rate.both:,.0f} chunks/s (built {rate.build:,.0f}, hashed {rate.tree:,.0f})"


def _apart(model: str, positions: int, cores: list[int], times: int, **environment: str) -> Rate:
    """The rate of a process on these cores."""
    command = [sys.executable, "-m", "benchmarks.trust.traces", model, str(positions), str(times)]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # whatever counts cores when it starts counts these
    try:
        made = subprocess.run(
            command, env=os.environ | environment, stdout=subprocess.PIPE, check=True
        )
    finally:
        os.sched_setaffinity(0, before)
    return Rate(**json.loads(made.stdout))


def measured(model: str, positions: int, times: int) -> Rate:
    """Of this process."""
    import torch

    from benchmarks.trust.town import honest, town
    from core.dispute.kernels.cores import cores
    from core.dispute.play.held import boundaries_of, build_trace
    from core.dispute.trace.layout import TraceLayout
    from core.protocol.types import LayerRange

    with town(model, "fp32") as here:
        start = here.spans[STAGE].start
        span = LayerRange(start, start + LAYERS)
        (prompt,) = here.prompts(1, positions)
        x = honest(here.shards[0], 0)(torch.tensor(prompt))
        rows = x, honest(here.load(span), 0)(x)
        layout = TraceLayout(here.ours.program, start, start + LAYERS, len(prompt), 0)
        signed = [row.float().numpy().astype("<f4").tobytes() for row in rows]
        boundaries = boundaries_of(layout, signed[0], signed[1])
        taken = []
        clock = time.perf_counter if cores() > 1 else time.process_time
        for _ in range(times):
            began = clock()
            trace = build_trace(layout, here.traced, boundaries)
            built = clock()
            assert trace.tree.root
            taken.append((built - began, clock() - built))
    built_s, hashed_s = (min(each) for each in zip(*taken, strict=True))
    return Rate(layout.chunks / built_s, layout.chunks / hashed_s)


if __name__ == "__main__":
    print(json.dumps(asdict(measured(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
