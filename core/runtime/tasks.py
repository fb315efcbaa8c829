"""What holds on to a task that is not awaited? The event loop does not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def spawn(
    work: Coroutine[Any, Any, Any], among: set[asyncio.Task[Any]], *, name: str | None = None
) -> None:
    """Begin it as a task that is `among` others until it is done; their owner ends them."""
    task = asyncio.create_task(work, name=name)
    among.add(task)
    task.add_done_callback(among.discard)
