"""openai-agents, over `/v1/responses` and over conversations, whole and streamed."""

from __future__ import annotations

import asyncio
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from script import ANSWER, ASK, added, multiplied


@function_tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return added(a, b)


@function_tool
def multiply(a: int, b: int) -> str:
    """Multiplies two numbers."""
    return multiplied(a, b)


async def main(url: str, key: str, model: str) -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key=key)
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        agent = Agent("sums", tools=[add, multiply], model=kind(model, client))
        found = await Runner.run(agent, ASK)
        assert found.final_output.startswith(ANSWER), found.final_output
        streamed = Runner.run_streamed(agent, ASK)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output.startswith(ANSWER), streamed.final_output
    print("done")


asyncio.run(main(*sys.argv[1:]))
