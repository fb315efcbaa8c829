"""What the scripted model is told to say, step by step: it says what follows `say:`."""

from __future__ import annotations

import json

TASK = "(2 + 3) * 4"
ANSWER = "It is 20."


def call(name: str, a: int, b: int) -> str:
    """What makes the model call a function."""
    made = json.dumps({"name": name, "arguments": {"a": a, "b": b}})
    return f"say:<tool_call>{made}</tool_call>"


ASK = f"{TASK}? {call('add', 2, 3)}"


def added(a: int, b: int) -> str:
    """What `add` gives back: its sum, and what the model is to say next."""
    return f"{a + b}. {call('multiply', a + b, 4)}"


def multiplied(a: int, b: int) -> str:
    """What `multiply` gives back."""
    return f"say:It is {a * b}."
