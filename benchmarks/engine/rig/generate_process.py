"""The peer: Hugging Face `generate` in one process, float32, greedy.

`python -m benchmarks.engine.rig.generate_process SPEC` decodes when asked, and times each token.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from benchmarks.engine.rig.child import keep_stdout, obey, say


class Spec(msgspec.Struct):
    """Which model, from its folder."""

    model: str


async def _serve(spec: Spec) -> None:
    import torch
    from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32).eval()
    for parameter in model.parameters():  # left mapped into the file it reads slower
        parameter.data = parameter.data.clone()
    model.generation_config.eos_token_id = None  # nobody stops
    model.generation_config.pad_token_id = 0

    async def perform(request: dict[str, Any]) -> Mapping[str, Any]:
        torch.set_num_threads(request["threads"])
        ids = torch.tensor(request["prompts"])
        times: list[float] = []

        class Note(StoppingCriteria):
            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
                times.append(time.monotonic())
                return torch.zeros(len(input_ids), dtype=torch.bool)

        with torch.inference_mode():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=request["new_tokens"],
                stopping_criteria=StoppingCriteriaList([Note()]),
            )
        return {"times_s": times, "tokens": out[:, ids.shape[1] :].tolist()}

    say({})
    await obey(perform)


if __name__ == "__main__":
    keep_stdout()
    asyncio.run(_serve(msgspec.json.decode(sys.argv[1], type=Spec)))
