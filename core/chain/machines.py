"""Which machines does the registry list for an owner?

Their owner announced them. Whether an operator may work is a matter of its stake, not of this list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

#: Places that the registry has for an owner's machines.
_PLACES = 64
_ACTIVE = 1


@dataclass(frozen=True)
class ListedMachine:
    """An entry. `place` is its number among its owner's, `kind` its class: cpu, cuda, rocm or mps
    where one of our programs wrote it.
    """

    place: int
    kind: str
    memory_mib: int
    endpoint_hash: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.memory_mib:,} MiB"


async def machines_of(
    read: Callable[..., Awaitable[Any]], owner: str, count: int
) -> list[ListedMachine]:
    """An owner's machines that are not retired, by `Chain.read`; in the order of their places.

    `count` is what `minerOf` says there are. Raises ChainUnreachable.
    """
    found = list[ListedMachine]()
    for place in range(_PLACES):
        if len(found) == count:
            break
        entry = await read("MinerRegistry", "machineOf", owner, place)
        if int(entry["state"]) == _ACTIVE:
            kind, memory_mib = kind_of(entry["class"]), int(entry["vramMiB"])
            found.append(ListedMachine(place, kind, memory_mib, str(entry["endpointHash"])))
    return found


def class_of(kind: str) -> str:
    """The registry's bytes4, 0x-hex, of a class of at most four letters."""
    return "0x" + kind.encode().ljust(4, b"\0").hex()


def kind_of(code: str) -> str:
    """The class of a bytes4, 0x-hex. Where a stranger wrote what is no word, that is returned."""
    word = bytes.fromhex(code.removeprefix("0x")).rstrip(b"\0").decode("ascii", "replace")
    return word if word.isascii() and word.isalnum() else code
