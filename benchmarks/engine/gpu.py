"""How fast are two stages in bfloat16 on a graphics processor, of `generate` and of its memory?

No row where there is no such device. Both stages run in one process, one after the other; every
step's rows pass through the host between them, as they would on their way to another machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import models
from benchmarks.engine.models import QUICK_NAMES, model_folder, tiny_folder
from benchmarks.table import Row
from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece
from core.engine.model.config_facts import read_config
from core.engine.weights.load_shard import load_shard
from core.engine.weights.shape import layer_count
from core.protocol.types import LayerRange

#: One more than elsewhere: of a size that memory, not launches, bounds.
NAMES = models.NAMES | {"llama-1b": "random Llama 1.2B"}
PROMPT_TOKENS, STEPS, WARM_STEPS = 18, 64, 8
#: Clients → of `generate` at batch 1: the first two rows of the table on processors.
REACH = {1: 0.9, 16: 12.0, 128: 12.0}
_COPIED_BYTES = 2**30
QUICK = {
    "NAMES": QUICK_NAMES,
    "model_folder": tiny_folder,
    "STEPS": 4,
    "WARM_STEPS": 2,
    "_COPIED_BYTES": 2**20,
}


def rows() -> list[Row]:
    """A row for each model and number of clients."""
    if not torch.cuda.is_available():
        print("no row: there is no graphics processor", file=sys.stderr)
        return []
    bandwidth = bandwidth_bytes_per_s("cuda", _COPIED_BYTES)
    found: list[Row] = []
    for name, title in NAMES.items():
        if model_folder(name).exists():
            found += model_rows(title, model_folder(name), "cuda", bandwidth)
    return found


def model_rows(title: str, folder: Path, device: str, bandwidth: float) -> list[Row]:
    """The rows of one model on a device whose memory reads and writes so many bytes a second."""
    alone = _generate_rate(folder, device)
    stages = _stages(folder, device)
    weight_bytes = sum(stage.shard.bytes for stage in stages)
    found = []
    for clients, reach in REACH.items():
        rate, kv_bytes = _rate(stages, clients, device)
        limit = clients * bandwidth / (weight_bytes + kv_bytes)
        refusals = {stage.graphs.refusal for stage in stages if stage.graphs is not None} - {""}
        launched = f"; launched: {'; '.join(refusals)}" if refusals else ""
        found.append(
            Row(
                f"{title} in bfloat16 on {device}, two stages, {clients} clients, "
                "of generate at batch 1",
                f"≥ {reach}",
                f"{rate / alone:.2f} ({rate:.0f} tokens/s{launched})",
                f"1 ({alone:.0f} tokens/s)",
                f"{limit:.0f} tokens/s at {bandwidth / 1e9:.0f} GB/s: "
                f"{100 * rate / limit:.0f} % of it",
                rate >= reach * alone,
            )
        )
    for stage in stages:
        stage.close()
    return found


def bandwidth_bytes_per_s(device: str, size: int) -> float:
    """Bytes read and written a second by copies of so many bytes, the best of eight."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(_seconds(lambda: target.copy_(source), device) for _ in range(8))


def _generate_rate(folder: Path, device: str) -> float:
    """Tokens a second of the library alone."""
    from transformers import AutoModelForCausalLM

    model: Any = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    )
    model.generation_config.eos_token_id = None
    ids = torch.arange(PROMPT_TOKENS, device=device)[None] + 10

    def run(count: int) -> None:
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
        )

    run(WARM_STEPS)
    # The prompt's own pass is left out: the difference of a long and a short answer.
    long_s = _seconds(lambda: run(STEPS + WARM_STEPS), device)
    return STEPS / (long_s - _seconds(lambda: run(WARM_STEPS), device))


def _stages(folder: Path, device: str) -> list[BatchEngine]:
    layers = layer_count(read_config(folder))
    parts = LayerRange(0, layers // 2), LayerRange(layers // 2, layers)
    shards = [load_shard(folder, part, numerics="bfloat16", device=device) for part in parts]
    return [BatchEngine(shard, kv_bytes=2**29, prefix_share=0) for shard in shards]


def _rate(stages: list[BatchEngine], clients: int, device: str) -> tuple[float, int]:
    """Tokens a second of `clients` together, and the bytes of keys and values at the end.

    The second of two runs: in the first, steps of new shapes are captured.
    """
    _served_s(stages, clients, device)
    took_s, held = _served_s(stages, clients, device)
    return clients * STEPS / took_s, held


def _served_s(stages: list[BatchEngine], clients: int, device: str) -> tuple[float, int]:
    for stage in stages:
        for client in range(clients):
            stage.open(client)
    fed = [torch.arange(PROMPT_TOKENS) + 10 + client for client in range(clients)]
    position = 0

    def step() -> None:
        nonlocal fed, position
        x = fed
        for stage in stages:
            pieces = [RequestPiece(client, part, position) for client, part in enumerate(x)]
            if stage is stages[-1]:
                break
            x = list(
                torch.cat(stage.step(pieces, checked=True)).cpu().split([len(part) for part in x])
            )
        drawn = [int(ids) for (ids,) in stages[-1].step(pieces, checked=True, draw=_largest)]
        position += len(fed[0])
        fed = list(torch.tensor(drawn).split(1))

    for _ in range(WARM_STEPS + 1):
        step()
    took_s = _seconds(lambda: [step() for _ in range(STEPS)], device)
    held = sum(stage.held_bytes()["device"] for stage in stages)
    for stage in stages:
        for client in range(clients):
            stage.free(client)
    return took_s, held


def _largest(logits: torch.Tensor) -> list[int]:
    """What a greedy request draws, found where the logits lie."""
    ids: list[int] = logits.argmax(-1).tolist()
    return ids


def _seconds(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started
