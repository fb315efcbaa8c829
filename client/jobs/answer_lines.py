"""How does an answer stand in a file of results? A line in the OpenAI batch format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from core.engine.sampling.stops import cut_at_stop, stop_strings
from core.protocol import ids
from core.protocol.types import SamplingParams

if TYPE_CHECKING:
    from core.engine.weights.tokenizer import Tokenizer


def answer_line(
    custom_id: str,
    job_id: str,
    request_index: int,
    *,
    model: str,
    tokenizer: Tokenizer,
    prompt_tokens: int,
    tokens: Sequence[int],
    finish: str,
    sampling: SamplingParams,
    logprobs: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """One answered request; `logprobs` are as shown to people, where they were asked for."""
    job = ids.full(ids.Kind.JOB, job_id)
    text = cut_at_stop(tokenizer.answer_text(tokens), stop_strings(sampling))
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
    }
    if logprobs is not None:
        choice["logprobs"] = {"content": logprobs}
    body = {
        "id": f"{job}-{request_index}",
        "object": "chat.completion",
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(tokens),
            "total_tokens": prompt_tokens + len(tokens),
        },
    }
    response = {"status_code": 200, "request_id": job, "body": body}
    return {"custom_id": custom_id, "response": response, "error": None}
