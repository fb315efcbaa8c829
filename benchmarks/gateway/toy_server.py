"""A gateway in a process of its own, before a toy that says tokens as fast as it is told to."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from client.context import Model
from client.gateway.openai.models import OfferedModel, ServedModel
from client.sessions.answering import Answered, Ask, AskTerms, PricedRequest, Said
from core.engine.weights.tokenizer import Tokenizer
from core.protocol import signing
from core.protocol.types import ModelSpec, Stage

NAME = "toy"
UNITS = 10
PLAN = (Stage("0x" + "a1" * 20, 0, 12),)
START_WITHIN_S = 60.0


def toy_model() -> Model:
    def name(text: str) -> str:
        return signing.name_hash(text)

    hashes = map(name, ("float32", "fp32", "weights", "manifest"))
    spec = ModelSpec(name("llama"), 12, 64, 4, 2, 128, 272, 4096, 1, 1, *hashes)
    return Model(NAME, "0x" + "77" * 32, spec)


class Toy:
    """Says `max_tokens` bytes of text, `token_s` apart. Its own work per token is an addition."""

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s

    async def price(
        self, model: Model, tokens_in: int, tokens_out: int, terms: AskTerms
    ) -> PricedRequest:
        return PricedRequest(10**7, 10**7, 0, UNITS * (tokens_in + tokens_out), PLAN)

    async def answer(self, ask: Ask) -> AsyncGenerator[Said | Answered, None]:
        tokens, count = len(ask.prompt.ids), ask.prompt.sampling.max_new_tokens
        began = time.monotonic()
        for step in range(count):
            wait_s = began + (step + 1) * self._token_s - time.monotonic()
            if wait_s > 0:  # a pipeline goes on while its reader is busy
                await asyncio.sleep(wait_s)
            yield Said(step, 65 + step % 26)
        cost = UNITS * (tokens + count)
        operators = (PLAN[0].operator,)
        yield Answered("0x" + "11" * 32, 0, operators, tokens, count, "length", cost, False)

    async def recover(self) -> None: ...

    async def close(self) -> None: ...


class ToyShelf:
    """One model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._served = ServedModel(toy_model(), tokenizer)

    async def find(self, name: str) -> ServedModel:
        return self._served

    async def ls(self) -> Sequence[OfferedModel]:
        return [OfferedModel(self._served.model, 10**7, 10**7, 1, True)]

    async def operators(self) -> Collection[str]:
        return ()


@dataclass(frozen=True)
class Running:
    """A gateway that answers."""

    url: str
    key: str
    pid: int

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    @property
    def rss_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS")

    @property
    def cpu_s(self) -> float:
        """User and system time so far."""
        import os

        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def toy_gateway(token_s: float = 0.0) -> Iterator[Running]:
    """Start one and stop it afterwards."""
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.gateway.toy_server", folder, str(token_s)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url, key = process.stdout.readline().split()
            deadline = time.monotonic() + START_WITHIN_S
            while time.monotonic() < deadline:
                with contextlib.suppress(httpx2.HTTPError):
                    if httpx2.get(f"{url}/health").is_success:
                        break
                time.sleep(0.05)
            yield Running(url, key, process.pid)
        finally:
            process.terminate()
            process.wait()


async def _serve(folder: Path, token_s: float) -> None:
    from client.gateway.money.keyring import KeyLimits
    from client.gateway.records.database import Database, private_sqlite_url
    from client.gateway.start import assemble, serving
    from core.runtime import logs
    from core.runtime.folders import Folders
    from core.runtime.settings import load
    from devnet.models.tiny_models import write_tiny_tokenizer

    # As a gateway does: into a file. Nobody reads our stdout, and a full pipe would stop us.
    logs.set_up("gateway-bench", level="warning", folder=folder / "logs")
    write_tiny_tokenizer(folder)
    settings = load(
        flags={"gateway.dashboard": "false"}, environ={}, folders=Folders.at(folder / "home")
    )
    nothing: Any = None  # no batches here
    gateway = assemble(
        settings,
        answerer=Toy(token_s),
        catalogue=ToyShelf(Tokenizer(folder)),
        offline=nothing,
        folder=folder / "gateway",
        database=Database.open(private_sqlite_url(folder / "gateway.sqlite")),
        payer="0x" + "01" * 20,
    )
    async with serving(gateway, "127.0.0.1", 0):
        _, key = await gateway.keys.new("bench", KeyLimits())
        print(gateway.url, key, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    from core.runtime.commands.cli import daemon_loop

    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("token_s", type=float)
    given = asked.parse_args()
    with asyncio.Runner(loop_factory=daemon_loop) as runner:  # as `client serve` does
        runner.run(_serve(given.folder, given.token_s))


if __name__ == "__main__":
    main()
