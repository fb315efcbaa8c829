"""What does a session add to the time until the first token of a further request?

    python -m benchmarks.first_token [REQUESTS]

Real stages over real streams in one process, a tiny model in two cuts. Bare: `Submit` to both
stages and the wait for the first `Token`, with everything signed beforehand. Session: `answer` of a
session pool until its first item: choosing the session, signing, writing the records and asking
both stages. Both alternate, so that they meet the same load. Prints medians and quartiles in
milliseconds, and processor time of a request.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from client.context import Context
from client.orders.orders import Prompt, opening_of
from core.protocol import commit, signing, wire
from core.protocol import types as t
from devnet.models.tiny_models import write_tiny_model
from tests.town.files import files_in
from tests.town.orders import DOMAIN, REQUESTER
from tests.town.town import prompts
from tests.town.village import SMALL, Village, ask

SIZES = SMALL.model_copy(update={"requests": 2000, "tokens_in": 400_000, "tokens_out": 400_000})


class Bare:
    """The pipeline of an open session, asked without it, at indices that the session never has."""

    def __init__(self, village: Village, session: object) -> None:
        self._session = session
        self._next = 1000

    async def first_token_s(self, prompt: Prompt) -> float:
        session, index = self._session, self._next
        self._next += 1
        opening = opening_of(session.order_hash, index, prompt)  # type: ignore[attr-defined]
        signed = t.SignedOpening(opening, signing.sign(REQUESTER, DOMAIN, opening))
        salt = commit.to_hex(prompt.salt)
        submit = wire.Submit(
            session.order_hash,
            index,
            salt,
            [],
            prompt.sampling,
            [],
            signed,  # type: ignore[attr-defined]
        )
        came = asyncio.Event()
        hear = session.hear  # type: ignore[attr-defined]

        def listen(operator: str, message: wire.AnyMessage) -> None:
            if isinstance(message, wire.Token) and message.request == index:
                came.set()
            else:
                hear(operator, message)

        session.hear = listen  # type: ignore[attr-defined]
        channels = session._channels  # type: ignore[attr-defined]
        began = time.perf_counter()
        for stage in (1, 0):
            await channels[stage].call(submit, commit.token_bytes(prompt.ids))
        await came.wait()
        took = time.perf_counter() - began
        session.hear = hear  # type: ignore[attr-defined]
        for channel in channels.values():
            await channel.send(wire.Cancel(session.order_hash, index))  # type: ignore[attr-defined]
        return took


async def measure(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model_dir = write_tiny_model(folder / "tiny", "llama", layers=6)
        Context.files_of = files_in(model_dir)  # type: ignore[method-assign]
        village = Village(folder, model_dir)
        await village.start((0, 3), (3, 6))
        sessions = village.sessions(SIZES)
        (prompt,) = prompts(1, tokens=2, prompt_tokens=16)

        async def over_session() -> float:
            began = time.perf_counter()
            items = sessions.answer(ask(village, prompt))
            await anext(items)
            took = time.perf_counter() - began
            async for _ in items:
                pass
            return took

        opening_s = await over_session()
        bare = Bare(village, sessions.sessions()[0])
        times: dict[str, list[float]] = {"bare": [], "session": []}
        spent = dict.fromkeys(times, 0.0)
        for _ in range(count):
            for kind, run in (
                ("bare", lambda: bare.first_token_s(prompt)),
                ("session", over_session),
            ):
                cpu = time.process_time()
                times[kind].append(await run() * 1000)
                spent[kind] += time.process_time() - cpu
        print(f"first request, which opens the session: {opening_s * 1000:.0f} ms (no chain here)")
        for kind, ms in times.items():
            low, middle, high = statistics.quantiles(ms, n=4)
            cpu_ms = spent[kind] * 1000 / count
            print(
                f"{kind:8} {middle:6.1f} ms ({low:.1f} to {high:.1f}), {cpu_ms:.1f} ms of processor"
            )
        await village.close()


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
