"""LlamaIndex: its loop of functions, and a program that gives a value."""

from __future__ import annotations

import asyncio
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from script import ANSWER, ASK, added, multiplied


async def main(url: str, key: str, model: str) -> None:
    llm = OpenAILike(
        model=model,
        api_base=url,
        api_key=key,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=4096,
        max_tokens=200,
    )
    tools = [
        FunctionTool.from_defaults(added, name="add", description="Adds two numbers."),
        FunctionTool.from_defaults(multiplied, name="multiply", description="Multiplies."),
    ]
    for streaming in (True, False):
        agent = FunctionAgent(tools=tools, llm=llm, streaming=streaming)
        found = str(await agent.run(ASK))
        assert found.startswith(ANSWER), found
    assert str(llm.complete("say:hello")) == "hello"
    print("done")


asyncio.run(main(*sys.argv[1:]))
