"""How fast one process generates with transformers' own loop: what a pipeline is compared with."""

from __future__ import annotations

import json
import time
from pathlib import Path

from core.engine.weights.store import resolve_model
from core.engine.weights.tokenizer import Tokenizer
from devnet.models.unpack import DEFAULT_MODEL
from devnet.results import Generated

NEW_TOKENS = 28
PROMPTS = 1


def generate_rate(file: Path) -> Generated:
    """Greedy `generate` of the first prompts of a JSONL file, one at a time, on one thread.

    In float32; loading is not counted.
    """
    import torch

    from core.engine.model.library import AutoModelForCausalLM

    folder = resolve_model(DEFAULT_MODEL)
    tokenizer = Tokenizer(folder)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens, elapsed_s = 0, 0.0
    for line in file.read_text().splitlines()[:PROMPTS]:
        ids = torch.tensor([tokenizer.encode_chat(json.loads(line)["body"]["messages"])])
        began = time.perf_counter()
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            pad_token_id=min(tokenizer.eos_ids),
        )
        elapsed_s += time.perf_counter() - began
        tokens += output.shape[1] - ids.shape[1]
    return Generated(tokens, round(elapsed_s, 3), tokens / elapsed_s)
