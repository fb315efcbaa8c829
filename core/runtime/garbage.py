"""What does the interpreter look at when it looks for garbage?

A full look at a program with torch in it takes a third of a second, in which it answers nothing.
"""

from __future__ import annotations

import gc


def look_seldom() -> None:
    """Imports make a million objects, and hardly any garbage."""
    gc.set_threshold(20_000, 20, 50)


def pass_over_what_is_here() -> None:
    """Look once more at everything, and from now on at nothing that is there: libraries, a model.

    For a program that has loaded what it needs. Garbage of it in cycles stays until the next call.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
