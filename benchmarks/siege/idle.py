"""What does an attacker take from others that talks to nobody? A share of a processor."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from benchmarks.siege.actor import Begin, Target

_STEP_S = 0.005


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    """Compute as much as the target says, in steps of milliseconds."""
    await begin()
    since, before_s = time.monotonic(), time.process_time()
    while True:
        due_s = target.share * (time.monotonic() - since)
        ahead_s = time.process_time() - before_s - due_s
        if ahead_s > 0:
            await asyncio.sleep(ahead_s / max(target.share, 1e-3) + _STEP_S)
            continue
        until_s = time.process_time() + _STEP_S
        while time.process_time() < until_s:
            done["rounds"] += 1
        await asyncio.sleep(0)
