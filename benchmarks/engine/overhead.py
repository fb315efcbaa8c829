"""Where does a step's time go besides the matrix products?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.engine.models import model_folder, packed_shard, tiny_folder, whole_shard
from benchmarks.table import Row
from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece

GATHER_BATCH, GATHER_TOKENS = 16, 96
CALLS, WARM_CALLS = 60, 10
QUICK = {"model_folder": tiny_folder, "GATHER_BATCH": 2, "CALLS": 3, "WARM_CALLS": 1}


def rows() -> list[Row]:
    """What gathering pages takes of a step, and what a layer takes without its products."""
    torch.set_num_threads(1)
    return [_gather_row(), _python_row()]


def _gather_row() -> Row:
    name = "gemma" if model_folder("gemma").exists() else "llama"
    engine = BatchEngine(packed_shard(model_folder(name))[0], kv_bytes=2**28, prefix_share=0)
    for i in range(GATHER_BATCH):
        engine.open(i)
        engine.step([RequestPiece(i, torch.arange(10, 10 + GATHER_TOKENS), 0, "none")])

    def step(position: int) -> None:
        engine.step([RequestPiece(i, torch.tensor([7 + i]), position) for i in range(GATHER_BATCH)])

    step(GATHER_TOKENS)
    started = time.process_time()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for position in range(GATHER_TOKENS + 1, GATHER_TOKENS + 4):
            step(position)
    total = (time.process_time() - started) * 1e6  # our own kernels are no events of the profiler
    spent: dict[str, float] = {e.key: e.self_cpu_time_total for e in seen.key_averages()}
    gather = spent.get("aten::index_select", 0.0)
    torchs = sum(spent.values()) - gather
    engine.close()
    return Row(
        f"page gather, {GATHER_BATCH} sequences of {GATHER_TOKENS} tokens, share of a step",
        "≤ 5 %",
        f"{100 * gather / total:.1f} % (torch's other operators {100 * torchs / total:.0f} %)",
        "23 % (indexing by page)",
        "0 %",
        gather / total <= 0.05,
    )


def _python_row() -> Row:
    """18 layers so narrow that only calls take time, beside transformers' own cache and loop."""
    from devnet.models.tiny_models import write_tiny_model

    with tempfile.TemporaryDirectory(prefix="headrace-thin-") as scratch:
        folder = write_tiny_model(Path(scratch), "llama", layers=18)
        engine = BatchEngine(whole_shard(folder), kv_bytes=2**24, prefix_share=0, least_rows=1)
        theirs = whole_shard(folder)
    engine.open("r")
    cache = _library_cache(theirs)
    taken: dict[bool, list[float]] = {True: [], False: []}
    for position in range(CALLS):
        started = time.process_time()
        engine.step([RequestPiece("r", torch.tensor([7]), position)])
        middle = time.process_time()
        with torch.inference_mode():
            theirs.model(input_ids=torch.tensor([[7]]), past_key_values=cache, use_cache=True)
        taken[True].append(middle - started)
        taken[False].append(time.process_time() - middle)
    ours, library = (median(taken[key][WARM_CALLS:]) / 18 * 1e3 for key in (True, False))
    engine.close()
    return Row(
        "calls of one layer without the products, one row",
        "≤ 1.25 of transformers' loop",
        f"{ours / library:.2f} ({ours:.2f} ms)",
        f"1 ({library:.2f} ms)",
        "–",
        ours <= 1.25 * library,
    )


def _library_cache(shard: Any) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=shard.model.config)
