"""LiteLLM, as a library: functions, a form, and another model where the first one is not served."""

from __future__ import annotations

import json
import sys

import litellm


def function(name: str) -> dict:
    numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    parameters = {"type": "object", "properties": numbers, "required": ["a", "b"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def main(url: str, key: str, model: str) -> None:
    from script import ANSWER, ASK, added, multiplied

    known = {"add": added, "multiply": multiplied}
    how = {"model": f"openai/{model}", "api_base": url, "api_key": key}
    messages = [{"role": "user", "content": ASK}]
    for _ in range(3):
        said = litellm.completion(**how, messages=messages, tools=list(map(function, known)))
        message = said.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            output = known[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    assert message.content.startswith(ANSWER), message
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "array"}}}
    asks = [{"role": "user", "content": "say:[1, 2]"}]
    listed = litellm.completion(**how, messages=asks, response_format=form)
    assert json.loads(listed.choices[0].message.content) == [1, 2]
    router = litellm.Router(
        model_list=[
            {"model_name": "best", "litellm_params": how | {"model": "openai/not-served"}},
            {"model_name": "other", "litellm_params": how},
        ],
        fallbacks=[{"best": ["other"]}],
        num_retries=0,
    )
    hello = router.completion("best", messages=[{"role": "user", "content": "say:hello"}])
    assert hello.choices[0].message.content == "hello"
    print("done")


main(*sys.argv[1:])
