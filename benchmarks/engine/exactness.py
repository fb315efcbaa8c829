"""Are a row's bits the same beside any others, how far from transformers', and at which cost?"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.models import NAMES, QUICK_NAMES, model_folder, tiny_folder, whole_shard
from benchmarks.table import Row
from core.engine.batch.batch import BatchEngine
from core.engine.batch.determinism import is_batch_invariant
from core.engine.batch.pieces import RequestPiece
from core.engine.kernels.prepack import prepack
from core.engine.memory.sizing import Offload

_PROMPT, _STEPS, _OTHERS = 150, 8, 15
_COST_STEPS = {1: 24, 16: 9}
QUICK = {
    "NAMES": QUICK_NAMES,
    "model_folder": tiny_folder,
    "_STEPS": 2,
    "_COST_STEPS": {1: 2, 16: 2},
}


def rows() -> list[Row]:
    """Bits, distance and cost for each installed model."""
    torch.set_num_threads(1)
    found: list[Row] = []
    for name, title in NAMES.items():
        folder = model_folder(name)
        if folder.exists():
            found += _model_rows(title, folder)
    return found


def _model_rows(title: str, folder: Path) -> list[Row]:
    shard = whole_shard(folder)
    ids = torch.randint(
        10, shard.vocab, (_PROMPT + _STEPS,), generator=torch.Generator().manual_seed(1)
    )
    cache = shard.new_cache()
    plain = torch.cat(
        [
            shard.forward(part, cache)
            for part in (ids[:128], ids[128:_PROMPT], *ids[_PROMPT:].split(1))
        ]
    )
    report = prepack(shard, model_dir=folder)
    engine = BatchEngine(shard, kv_bytes=256 * 2**20, prefix_share=0, least_rows=report.least_rows)
    alone = _sequence(engine, ids, 0)
    difference = float((alone - plain).abs().max())
    tokens = int((alone.argmax(-1) == plain.argmax(-1)).sum())
    beside = torch.equal(_sequence(engine, ids, _OTHERS), alone)
    threads = is_batch_invariant(engine, threads=(1, 2))
    torch.set_num_threads(2)
    two = torch.equal(_sequence(engine, ids, 3), alone)
    torch.set_num_threads(1)
    padded = BatchEngine(shard, kv_bytes=2**26, prefix_share=0, least_rows=2)
    unpacked = BatchEngine(whole_shard(folder), kv_bytes=2**26, prefix_share=0, least_rows=1)
    costs = _costs(engine, unpacked, padded)
    for other in (unpacked, padded):
        other.close()
    engine.close()
    page_bytes = engine.layout.shapes[0].page_bytes(4)
    wanted = engine.layout.pages_for(len(ids), 0, len(shard.layers))[0] + 64
    swapping = BatchEngine(
        shard,
        kv_bytes=(2 * wanted + 1) * page_bytes,
        prefix_share=0,
        offload=Offload(4, 0.5),
        least_rows=report.least_rows,
    )
    offloaded = torch.equal(_sequence(swapping, ids, 3, microbatches=4), alone)
    moved = swapping.store.copied_bytes  # type: ignore[attr-defined]
    swapping.close()
    bits = {
        "in a batch of 16": beside,
        "with 2 threads": two and threads,
        f"offloaded ({moved / 2**20:.0f} MB moved)": offloaded and moved > 0,
    }
    equal = [what for what, same in bits.items() if same]
    unequal = [what for what, same in bits.items() if not same]
    return [
        Row(
            f"{title}, logits alone, in a batch of 16, with 2 threads, offloaded",
            "bit-equal",
            f"equal {', '.join(equal)}" + (f"; not {', '.join(unequal)}" if unequal else ""),
            "–",
            "bit-equal",
            not unequal,
        ),
        Row(
            f"{title}, cost of deterministic mode against plain kernels "
            f"(rows from {report.least_rows})",
            "≤ 5 % at 1 and 16",
            ", ".join(f"{100 * cost:+.1f} % {what}" for what, cost in costs.items()),
            "–",
            "0 %",
            all(costs[f"batch {batch}"] <= 0.05 for batch in _COST_STEPS),
        ),
        Row(
            f"{title}, largest logit difference to transformers' kernels ({report.packed} packed)",
            "≤ 1e-3",
            f"{difference:.1e} of {float(plain.abs().max()):.0f}; "
            f"{tokens} of {len(ids)} greedy equal",
            "–",
            "0",
            difference <= 1e-3,
        ),
    ]


def _sequence(engine: BatchEngine, ids: Tensor, others: int, microbatches: int = 1) -> Tensor:
    """Logits of one sequence in canonical chunks of 128, then decoded, beside `others`."""
    names: list[Any] = ["r", *range(others)]
    home = {name: i % microbatches for i, name in enumerate(names)}
    for name in names:
        engine.open(name, microbatch=home[name])
    got = []
    ends = [128, _PROMPT, *range(_PROMPT + 1, len(ids) + 1)]
    for first, end in zip([0, *ends], ends, strict=False):
        for m in range(microbatches):
            pieces = []
            for i, name in enumerate(names):
                if home[name] != m:
                    continue
                fed = ids[first:end] if name == "r" else (ids[i : i + 1 + (first == 0) * 3 * i])
                at = first if name == "r" else engine.length(name)
                pieces.append(RequestPiece(name, fed, at, "all" if name == "r" else "last"))
            outs = engine.step(pieces, microbatch=m, following=(m + 1) % microbatches)
            if m == 0:
                got.append(outs[0])
    for name in names:
        engine.free(name)
    return torch.cat(got)


def _costs(exact: BatchEngine, plain: BatchEngine, padded: BatchEngine) -> dict[str, float]:
    """Share by which a step of each takes longer than with plain kernels, which promise no bits.

    Processor time of one thread, steps taking turns. Machines whose kernels sum a single row in
    another order pay what the padded one takes.
    """
    engines = {"exact": exact, "plain": plain, "padded": padded}
    found = {}
    for batch, names in ((1, ("exact", "plain", "padded")), (16, ("exact", "plain"))):
        taken: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            for i in range(batch):
                engines[name].open(i)
            engines[name].step([RequestPiece(i, torch.arange(10, 30), 0) for i in range(batch)])
        for step in range(_COST_STEPS[batch]):
            for name in names[step % len(names) :] + names[: step % len(names)]:
                pieces = [RequestPiece(i, torch.tensor([7]), 20 + step) for i in range(batch)]
                started = time.process_time()
                engines[name].step(pieces)
                taken[name].append(time.process_time() - started)
        for name in names:
            for i in range(batch):
                engines[name].free(i)
        base = median(taken["plain"])
        found[f"batch {batch}"] = median(taken["exact"]) / base - 1
        if "padded" in taken:
            found["batch 1 padded to 2 rows"] = median(taken["padded"]) / base - 1
    return found
