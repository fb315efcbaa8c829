"""How many more requests does the same hot memory serve with swapped pages, and how fast?

Two engines on equal weights decode the same sequences in the same microbatches: one has memory for
all of them, the other for less than a third and a copier. Whole rounds take turns, so that the
copier gains nothing from the pause.
"""

from __future__ import annotations

import math
import time
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.models import model_folder, packed_shard, tiny_folder
from benchmarks.table import Row
from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece
from core.engine.memory.offload import SwapStore, microbatch_bytes
from core.engine.memory.sizing import Offload

MICROBATCHES, MEMBERS, PROMPT_TOKENS, ROUNDS = 8, 6, 120, 8
ROOMY_BYTES = 1200 * 2**20
QUICK = {"model_folder": tiny_folder, "ROUNDS": 3, "ROOMY_BYTES": 64 * 2**20}
NAMES = [(m, i) for m in range(MICROBATCHES) for i in range(MEMBERS)]


def rows() -> list[Row]:
    """The random Llama: every token keeps 92 KB, so that swapping has work to do."""
    torch.set_num_threads(1)
    shard, _ = packed_shard(model_folder("llama"))
    layers, tokens = len(shard.layers), PROMPT_TOKENS + ROUNDS
    roomy = BatchEngine(shard, kv_bytes=ROOMY_BYTES, prefix_share=0)
    page_bytes = roomy.layout.shapes[0].page_bytes(4)
    wanted = MEMBERS * roomy.layout.pages_for(tokens, 0, layers)[0]
    swapped = int(wanted * 0.95)
    hot = MICROBATCHES * (wanted - swapped) + 2 * swapped
    capacity = microbatch_bytes(hot, swapped, MICROBATCHES)
    # A shard of its own: gates of another engine in its layers would keep the fast kernels away.
    tight = BatchEngine(
        packed_shard(model_folder("llama"))[0],
        kv_bytes=(hot + 1) * page_bytes,
        prefix_share=0,
        offload=Offload(MICROBATCHES, (swapped + 0.5) / hot),
    )
    store = tight.store
    assert isinstance(store, SwapStore) and store.plans[0].pages_of_microbatch == capacity
    _fill(roomy, tight)
    ids = [10 + 7 * i % (shard.vocab - 10) for i in range(len(NAMES))]
    fed: dict[Any, Tensor] = {name: torch.tensor([i]) for name, i in zip(NAMES, ids, strict=True)}
    taken: dict[bool, list[float]] = {False: [], True: []}
    equal = True
    for step in range(ROUNDS):
        position, outs = PROMPT_TOKENS + step, {}
        for engine in (roomy, tight) if step % 2 else (tight, roomy):
            engine_outs, times = _round(engine, fed, position, swapping=engine is tight)
            outs[engine is tight] = engine_outs
            if step > 1:
                taken[engine is tight] += times[1:]
        equal &= all(torch.equal(outs[True][name], outs[False][name]) for name in NAMES)
        fed = {name: out.argmax(-1) for name, out in outs[False].items()}
    without = hot * MEMBERS / wanted
    kept = median(taken[False]) / median(taken[True])
    held = len(NAMES) / without
    store.close()
    where = f"hot memory {(hot + 1) * page_bytes / 2**20:.0f} MB"
    moved = (
        f"{store.copied_bytes / 2**30:.1f} GB moved at "
        f"{store.copied_bytes / (store.copying_s or math.inf) / 1e9:.1f} GB/s, "
        f"{store.stalled_s * 1e3 / max(1, ROUNDS * MICROBATCHES):.1f} ms waited per turn of "
        f"{median(taken[True]) * 1e3:.0f}"
    )
    return [
        Row(
            f"KV offload, sequences of {tokens} tokens, {where}",
            "≥ 3 ×",
            f"{held:.2f} × ({len(NAMES)} against {without:.1f})",
            "1",
            f"{MICROBATCHES * capacity / hot:.2f} × (formula 1)",
            held >= 3,
        ),
        Row(
            "KV offload, throughput kept against memory for all",
            "≥ 0.9",
            f"{kept:.2f} ({moved})",
            "–",
            "1",
            kept >= 0.9,
        ),
        Row(
            "KV offload, logits",
            "bit-equal",
            "equal" if equal else "not equal",
            "–",
            "bit-equal",
            equal,
        ),
    ]


def _fill(roomy: BatchEngine, tight: BatchEngine) -> None:
    """Give every sequence the keys and values of one prompt, which runs once."""
    for engine in (roomy, tight):
        for m, i in NAMES:
            engine.open((m, i), microbatch=m if engine is tight else 0)
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(10, roomy.shard.vocab, (PROMPT_TOKENS,), generator=made)
    roomy.step([RequestPiece(NAMES[0], ids, 0, "none")])
    source = roomy.kv.requests[NAMES[0]]
    content = {n: roomy.store.read(0, table.held(), 0) for n, table in source.tables.items()}
    for engine in (roomy, tight):
        for name in NAMES:
            held = engine.kv.requests[name]
            if held.length:
                continue
            engine.kv.grow([(held, PROMPT_TOKENS)])
            for n, table in held.tables.items():
                engine.store.write(0, table.held(), held.microbatch, content[n])
            engine.kv.grown(held, PROMPT_TOKENS)


def _round(
    engine: BatchEngine, fed: dict[Any, Tensor], position: int, *, swapping: bool
) -> tuple[dict[Any, Tensor], list[float]]:
    """One step of every microbatch; outputs and seconds of each."""
    outs: dict[Any, Tensor] = {}
    times = []
    for m in range(MICROBATCHES):
        names = [(m, i) for i in range(MEMBERS)]
        pieces = [RequestPiece(name, fed[name], position) for name in names]
        started = time.perf_counter()
        if swapping:
            got = engine.step(pieces, microbatch=m, following=(m + 1) % MICROBATCHES)
        else:
            got = engine.step(pieces)
        times.append(time.perf_counter() - started)
        outs |= dict(zip(names, got, strict=True))
    return outs, times
