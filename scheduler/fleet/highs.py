"""How is HiGHS opened so that the same problem always has the same answer?"""

from __future__ import annotations

from typing import Any


def open_highs(**options: Any) -> tuple[Any, Any]:
    """(highspy, an empty solver): silent, one thread, a fixed seed, then the given options."""
    import highspy  # here, so that commands that plan nothing start without it

    solver: Any = highspy._core._Highs()
    always = {"output_flag": False, "threads": 1, "parallel": "off", "random_seed": 1}
    for option, value in (always | options).items():
        solver.setOptionValue(option, value)
    return highspy, solver
