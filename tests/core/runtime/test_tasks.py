from __future__ import annotations

import asyncio
from typing import Any

from core.runtime.tasks import spawn


async def test_a_task_is_held_until_it_is_done() -> None:
    held, goes_on = set[asyncio.Task[Any]](), asyncio.Event()
    spawn(goes_on.wait(), held, name="waits")
    (task,) = held
    assert task.get_name() == "waits"
    goes_on.set()
    await task
    await asyncio.sleep(0)
    assert not held


async def test_one_that_fails_or_is_cancelled_is_let_go() -> None:
    async def fail() -> None:
        raise ValueError("as asked")

    held = set[asyncio.Task[Any]]()
    spawn(fail(), held)
    spawn(asyncio.Event().wait(), held)
    for task in held:
        if task.get_coro().__name__ != "fail":  # type: ignore[union-attr]
            task.cancel()
    found = await asyncio.gather(*held, return_exceptions=True)
    assert {type(error) for error in found} == {ValueError, asyncio.CancelledError}
    await asyncio.sleep(0)
    assert not held
