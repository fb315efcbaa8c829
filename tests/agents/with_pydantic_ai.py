"""pydantic-ai: functions, and an answer that is a value."""

from __future__ import annotations

import asyncio
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from script import ANSWER, ASK, added, multiplied


class Person(BaseModel):
    name: str
    age: int


async def main(url: str, key: str, name: str) -> None:
    model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=url, api_key=key))
    agent = Agent(model)
    agent.tool_plain(added, name="add")
    agent.tool_plain(multiplied, name="multiply")
    found = await agent.run(ASK)
    assert found.output.startswith(ANSWER), found.output
    formed = Agent(model, output_type=NativeOutput(Person))
    person = await formed.run('say:{"name": "Ann", "age": 31}')
    assert person.output == Person(name="Ann", age=31)
    # As a function that must be called: what the model would say does not matter.
    forced = Agent(model, output_type=bool, model_settings={"max_tokens": 500})
    assert (await forced.run("Is it?")).output in (True, False)
    print("done")


asyncio.run(main(*sys.argv[1:]))
