"""Do other people's clients work unmodified: async openai, LangChain, llm?"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai

from tests.client.gateway.world import World


def test_five_hundred_streams_at_once_without_an_error(world: World) -> None:
    world.answerer.token_s = 0.01
    secret, streams = world.new_key(), 500

    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model="toy",
            messages=[{"role": "user", "content": f"say:number {number}"}],
            stream=True,
        )
        pieces = [c.choices[0].delta.content or "" async for c in stream if c.choices]
        return "".join(pieces)

    async def many() -> list[str]:
        import httpx2

        limits = httpx2.Limits(max_connections=streams, max_keepalive_connections=streams)
        async with openai.AsyncOpenAI(
            base_url=world.base_url,
            api_key=secret,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(limits=limits, timeout=120),
        ) as client:
            return await asyncio.gather(*(one(client, number) for number in range(streams)))

    assert asyncio.run(many()) == [f"number {number}" for number in range(streams)]
    key = world.key(secret)
    assert key.spent_units == world.bank.total_units and key.reserved_units == 0


def test_langchain_invokes_streams_and_batches(world: World) -> None:
    from langchain_openai import ChatOpenAI, OpenAI

    made: dict[str, Any] = {"base_url": world.base_url, "api_key": world.new_key(), "model": "toy"}
    chat = ChatOpenAI(**made, max_tokens=64, stream_usage=True)
    answer = chat.invoke([("system", "be short"), ("user", "say:from langchain")])
    assert answer.content == "from langchain"
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] == 15
    chunks = list(chat.stream("say:piece by piece"))
    assert "".join(str(chunk.content) for chunk in chunks) == "piece by piece"
    assert any(chunk.usage_metadata for chunk in chunks)
    assert [a.content for a in chat.batch(["say:a", "say:b"])] == ["a", "b"]
    assert OpenAI(**made, max_tokens=32).invoke("say:plain") == "plain"


def test_llm_prompts_with_its_own_home(world: World, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: ours\n  model_name: toy\n  api_base: {world.base_url}\n  api_key_name: ours\n"
    )
    environ = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": world.new_key()}
    for options in ([], ["--no-stream"]):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "llm",
                "-m",
                "ours",
                "--key",
                world.new_key(),
                *options,
                "say:from llm",
            ],
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.strip() == "from llm", done.stderr
