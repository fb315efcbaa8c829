"""How do benchmarks ask the gateway? One stream, timed, without a client library's own work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import httpx2

from benchmarks.gateway.toy_server import NAME, Running
from client.orders.orders import Prompt
from client.sessions.answering import Ask, Said
from core.protocol.types import SamplingParams

MESSAGES = [{"role": "user", "content": "How does a ring of machines answer a question?"}]


@dataclass(frozen=True)
class Timed:
    """One stream as its reader saw it."""

    first_s: float
    last_s: float
    events: int
    is_whole: bool


def body(tokens: int, *, is_stream: bool = True) -> dict[str, Any]:
    return {"model": NAME, "messages": MESSAGES, "max_tokens": tokens, "stream": is_stream}


async def stream(client: httpx2.AsyncClient, gateway: Running, tokens: int) -> Timed:
    """Ask for this many tokens; `first_s` is until the first text, which comes after the role."""
    began = time.perf_counter()
    first_s, events, tail = 0.0, 0, b""
    url = f"{gateway.url}/v1/chat/completions"
    async with client.stream("POST", url, json=body(tokens), headers=gateway.headers) as answer:
        answer.raise_for_status()
        async for data in answer.aiter_raw():
            events += data.count(b"\n\n")
            if not first_s and (events > 1):
                first_s = time.perf_counter() - began
            tail = (tail + data)[-32:]
    whole = tail.endswith(b"data: [DONE]\n\n")
    return Timed(first_s, time.perf_counter() - began, events, whole)


async def direct(toy: Any, model: Any, tokens: int) -> Timed:
    """The same of the answerer itself, without a gateway."""
    began = time.perf_counter()
    first_s, said = 0.0, 0
    prompt = Prompt("bench", tuple(range(50)), SamplingParams(max_new_tokens=tokens), b"\0" * 32)
    async for item in toy.answer(Ask("bench", model, prompt)):
        if isinstance(item, Said):
            said += 1
            first_s = first_s or time.perf_counter() - began
    return Timed(first_s, time.perf_counter() - began, said, True)
