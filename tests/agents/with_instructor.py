"""instructor: a value by a function, by a schema and by JSON."""

from __future__ import annotations

import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def main(url: str, key: str, model: str) -> None:
    ann = '{"name": "Ann", "age": 31}'
    for mode, said in (
        (instructor.Mode.JSON_SCHEMA, ann),
        (instructor.Mode.JSON, ann),
        (instructor.Mode.TOOLS, f'{{"name": "Person", "arguments": {ann}}}'),
    ):
        client = instructor.from_openai(OpenAI(base_url=url, api_key=key), mode=mode)
        person = client.chat.completions.create(
            model=model,
            response_model=Person,
            messages=[{"role": "user", "content": f"say:{said}"}],
            max_retries=0,
        )
        assert (person.name, person.age) == ("Ann", 31), (mode, person)
    print("done")


main(*sys.argv[1:])
