"""A process of its own that plans for one question: JSON on stdin, JSON on stdout.

The matcher starts it per question, so a solver that will not stop can be ended, and never takes the
daemon's loop or memory with it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from core.protocol.errors import HeadraceError, UsageError
from core.runtime.commands.results import plain
from matcher.planning.plan_file import WhatIf, plan_what_if, what_if_of

MAX_MEMORY_BYTES = 4 * 2**30


def answer(question: Mapping[str, Any], clock: Callable[[], float]) -> dict[str, Any]:
    """One entry per method: its plan, or why it has none.

    What is left of the time is shared by the methods still to come.
    """
    try:
        asked = what_if_of(
            question["document"], "fleet", question.get("model"), question.get("profiles")
        )
    except HeadraceError as error:
        return {"error": error.to_dict()}
    methods, until = list(question["methods"]), clock() + float(question["limit_s"])
    plans = []
    for position, method in enumerate(methods):
        share_s = max(0.0, until - clock()) / (len(methods) - position)
        plans.append({"method": method, **_plan(asked, method, clock, share_s)})
    return {"plans": plans}


def _plan(asked: WhatIf, method: str, clock: Callable[[], float], limit_s: float) -> dict[str, Any]:
    try:
        return {"plan": plain(plan_what_if(asked, method, clock, limit_s))}
    except HeadraceError as error:
        return {"error": error.to_dict()}
    except (
        ArithmeticError,
        ValueError,
        MemoryError,
    ) as error:  # one method's numbers, not the others'
        found = UsageError(
            f"method {method} cannot plan this", why=f"{type(error).__name__}: {error}"
        )
        return {"error": found.to_dict()}


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    json.dump(answer(json.load(sys.stdin), time.monotonic), sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
