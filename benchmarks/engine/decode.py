"""How fast is one process with a whole model, against Hugging Face `generate` in the same process?

Steps of both take turns on one thread. Their processor time is measured: on a quiet machine it is
the wall clock, and other programs do not change it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.models import NAMES, QUICK_NAMES, model_folder, packed_shard, tiny_folder
from benchmarks.table import Row
from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece

PROMPT_TOKENS = 18
STEPS = {1: 16, 4: 12, 16: 8, 64: 5}
#: Of `generate` at the same batch in the same run: what the kernels of both predict, less noise.
REACH = {1: 0.9, 4: 1.2, 16: 1.0, 64: 1.0}
KV_BYTES = 512 * 2**20
QUICK = {
    "NAMES": QUICK_NAMES,
    "model_folder": tiny_folder,
    "STEPS": {1: 2, 4: 1},
    "KV_BYTES": 2**24,
}


def rows() -> list[Row]:
    """A row for each model and batch size, and one for the greedy tokens of each model."""
    torch.set_num_threads(1)
    found: list[Row] = []
    for name, title in NAMES.items():
        folder = model_folder(name)
        if not folder.exists():
            found.append(Row(title, "installed", "not installed", "–", "–", False))
            continue
        found += _model_rows(title, *_load(folder))
    return found


def _load(folder: Any) -> tuple[BatchEngine, Any]:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for parameter in theirs.parameters():  # left mapped into the file it reads slower
        parameter.data = parameter.data.clone()
    theirs.generation_config.eos_token_id = None  # every answer has all its tokens
    shard, least_rows = packed_shard(folder)
    engine = BatchEngine(shard, kv_bytes=KV_BYTES, prefix_share=0, least_rows=least_rows)
    return engine, theirs


def _model_rows(title: str, engine: BatchEngine, theirs: Any) -> list[Row]:
    found = []
    for batch, steps in STEPS.items():
        ours_s, theirs_s, equal, length = _race(engine, theirs, batch, steps)
        ratio = theirs_s / ours_s
        found.append(
            Row(
                f"{title}, one process, batch {batch}, decode tokens/s against generate at {batch}",
                f"≥ {REACH[batch]}",
                f"{ratio:.2f} ({batch / ours_s:.1f} tokens/s, {equal} of {length} tokens equal)",
                f"1 ({batch / theirs_s:.1f} tokens/s)",
                "–",
                ratio >= REACH[batch] and equal == length,
            )
        )
    engine.close()
    return found


def _race(
    engine: BatchEngine, theirs: Any, batch: int, steps: int
) -> tuple[float, float, int, int]:
    """Median seconds of a decode step, ours and theirs; equal tokens, and tokens in all."""
    vocab = engine.shard.vocab
    ids = torch.randint(
        10, vocab, (batch, PROMPT_TOKENS), generator=torch.Generator().manual_seed(batch)
    )
    ours, other = _our_steps(engine, ids), _their_steps(theirs, ids)
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    equal = total = 0
    for step in range(steps + 1):
        started = time.process_time()
        mine = next(ours)
        middle = time.process_time()
        reference = next(other)
        if step:  # the first holds the prompt
            taken["ours"].append(middle - started)
            taken["theirs"].append(time.process_time() - middle)
        equal += int((mine == reference).sum())
        total += batch
    for i in range(batch):
        engine.free(i)
    return median(taken["ours"]), median(taken["theirs"]), equal, total


def _our_steps(engine: BatchEngine, ids: Tensor) -> Iterator[Tensor]:
    for i in range(len(ids)):
        engine.open(i)
    fed, position = list(ids), 0
    while True:
        outs = engine.step([RequestPiece(i, x, position) for i, x in enumerate(fed)])
        tokens = torch.cat(outs).argmax(-1)
        position += len(fed[0])
        fed = list(tokens[:, None])
        yield tokens


def _their_steps(model: Any, ids: Tensor) -> Iterator[Tensor]:
    """`generate` in a thread of its own, stopped after every token."""
    import threading

    from transformers import StoppingCriteria, StoppingCriteriaList

    go, done, seen = threading.Semaphore(0), threading.Semaphore(0), []

    class Pause(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            seen.append(input_ids[:, -1].clone())
            done.release()
            go.acquire()
            return torch.zeros(len(input_ids), dtype=torch.bool)

    def work() -> None:
        torch.set_num_threads(1)
        go.acquire()
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=10**6,
                stopping_criteria=StoppingCriteriaList([Pause()]),
            )

    threading.Thread(target=work, daemon=True).start()
    while True:
        go.release()
        done.acquire()
        yield seen[-1]
