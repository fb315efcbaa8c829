"""How is a value made of another one that has fields of the same names?"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def copied(kind: type[T], source: object, /, **given: Any) -> T:
    """A dataclass of this kind with the given values, the others from the source by their names.

    Raises AttributeError for a field that is neither given nor the source's.
    """
    known: Any = kind
    names = {field.name for field in fields(known)} - given.keys()
    return kind(**given, **{name: getattr(source, name) for name in names})
