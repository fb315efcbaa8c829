"""What do the commands of every program print with --json, and what does a failure print?

The types of a program's own commands stand beside those commands; they are made from `Result`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

#: Command → the types of its result; several where the result depends on options or on the state.
Results = dict[str, tuple[Any, ...]]


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one command answers."""


class Setting(Result, frozen=True):
    """`config show`: one effective setting and who set it."""

    key: str
    value: Any
    origin: str


class Changed(Result, frozen=True):
    """`config set`."""

    key: str
    value: Any
    file: str


class Places(Result, frozen=True):
    """`config path`."""

    config: str
    state: str
    cache: str
    networks: str


class DebugBundle(Result, frozen=True):
    """`debug save`."""

    file: str
    contents: list[str]


class BackedUp(Result, frozen=True):
    """`backup save`, `backup restore`."""

    file: str
    at: int
    files: int
    size_bytes: int
    left_out: list[str]


class Rehearsed(Result, frozen=True):
    """Any command with --dry-run, where it would have asked: nothing was signed."""

    dry_run: Literal[True]
    question: str
    summary: dict[str, str]


class Failure(Result, frozen=True):
    """Why a command failed: the four lines for people, and values for programs."""

    code: str
    type: str
    reason: str
    what: str
    why: str
    state: str
    next: str
    details: dict[str, Any]


#: Of every program.
SHARED: Results = {
    "config show": (list[Setting],),
    "config set": (Changed,),
    "config path": (Places,),
    "debug save": (DebugBundle,),
    "backup save": (BackedUp,),
    "backup restore": (BackedUp,),
    "schema": (list[str],),
}


def plain(result: Any) -> Any:
    """A result as JSON-ready values, its fields under the names that JSON has for them."""
    return msgspec.to_builtins(result, enc_hook=_number_or_text)


def _number_or_text(value: Any) -> Any:
    """NumPy's floats as numbers, paths and the like as text."""
    return float(value) if isinstance(value, float) else str(value)
