"""A requester's program that asks over sessions and says what it hears, one JSON document a line.

python -m tests.swarm.asker ASKS AT_ONCE MAX_TOKENS [PROMPT_PREFIX]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from client.context import open_context
from client.orders.orders import make_prompt
from client.sessions.answering import Answered, Ask, Said
from client.sessions.pool import SessionPool
from core.engine.weights.tokenizer import Tokenizer
from core.protocol.types import SamplingParams
from core.runtime.commands.console import GlobalOptions, Run


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def talk(asks: int, at_once: int, max_tokens: int, prefix: str = "Tell me") -> None:
    run = Run("client", "ask", GlobalOptions(yes=True))
    settings = run.load()
    async with open_context(settings) as context:
        model = await context.model(settings.client.model)
        tokenizer = Tokenizer((await context.files_of(model)).folder)
        sessions = SessionPool(context, run.unlock())
        slots = asyncio.Semaphore(at_once)

        async def ask(number: int) -> None:
            sampling = SamplingParams(max_new_tokens=max_tokens)
            ids = tokenizer.encode_chat([{"role": "user", "content": f"{prefix} {number}"}])
            prompt = make_prompt("", ids, sampling, model.spec.context, os.urandom)
            async with slots:
                began, first, tokens = time.monotonic(), 0.0, []
                async for item in sessions.answer(Ask(f"ask-{number}", model, prompt)):
                    if isinstance(item, Said):
                        first = first or time.monotonic() - began
                        tokens.append(item.token)
                        if item.step == 0:
                            tell(began=number)
                        continue
                    assert isinstance(item, Answered)
                    tell(
                        answered=number,
                        tokens=tokens,
                        tokens_in=item.tokens_in,
                        cost=item.cost_units,
                        job=item.job_id,
                        partial=item.is_partial,
                        first_s=first,
                        whole_s=time.monotonic() - began,
                    )

        try:
            await asyncio.gather(*(ask(number) for number in range(asks)))
        finally:
            await sessions.close()
        tell(closed=True)


def main() -> int:
    asks, at_once, max_tokens = map(int, sys.argv[1:4])
    asyncio.run(talk(asks, at_once, max_tokens, *sys.argv[4:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
