"""What do the devnet's commands print with --json? One type per command; published schemas are made from them."""

from __future__ import annotations

from typing import Any

import msgspec

from core.runtime.commands.results import Result


class Up(Result, frozen=True, forbid_unknown_fields=False):
    """`up`."""

    network: str
    chain: str
    matcher: str
    gateway: str
    watch: str
    stop: str


class Down(Result, frozen=True):
    """`down`."""

    stopped: list[str]
    purged: bool


class Program(Result, frozen=True):
    """`status`: one program."""

    program: str
    state: str
    layers: str
    at: str
    pid: int
    alive: bool
    log: str


class Account(Result, frozen=True):
    """`accounts`: never a key."""

    name: str
    address: str
    wallet: str
    prepaid: str
    credit: str
    stake: str


class Funded(Result, frozen=True):
    """`fund`."""

    address: str
    wallet: str


class Clock(Result, frozen=True):
    """`warp` and `mine`."""

    chain_time_s: int
    block: int | msgspec.UnsetType = msgspec.UNSET


class Snapshot(Result, frozen=True):
    """`snapshot` and `revert`."""

    snapshot: str
    block: int


class Killed(Result, frozen=True):
    """`chaos kill`."""

    killed: str


class Signalled(Result, frozen=True):
    """`chaos freeze` and `chaos thaw`."""

    program: str
    signal: str


class Restarted(Result, frozen=True):
    """`chaos lie`, `chaos slow` and `chaos restart`."""

    restarted: str
    profile: str


class Way(Result, frozen=True, forbid_unknown_fields=False):
    """`links show`, `set`, `freeze`, `lose` and `thaw`: one direction of a link."""

    link: str
    endpoint: str
    way: str
    state: str
    connections: int
    latency_ms: float
    jitter_ms: float
    bytes_per_s: float


class Broken(Result, frozen=True, rename="camel"):
    """`links reset`, `cut` and `mend`."""

    link: str
    done: str
    broken_connections: int


class Generated(Result, frozen=True):
    """`measure-generate`."""

    tokens: int
    seconds: float
    tokens_per_s: float


RESULTS: dict[str, tuple[Any, ...]] = {
    "up": (Up,),
    "down": (Down,),
    "status": (list[Program],),
    "accounts": (list[Account],),
    "fund": (Funded,),
    "warp": (Clock,),
    "mine": (Clock,),
    "snapshot": (Snapshot,),
    "revert": (Snapshot,),
    "chaos kill": (Killed,),
    "chaos freeze": (Signalled,),
    "chaos thaw": (Signalled,),
    "chaos lie": (Restarted,),
    "chaos slow": (Restarted,),
    "chaos restart": (Restarted,),
    "links show": (list[Way],),
    "links set": (list[Way],),
    "links freeze": (list[Way],),
    "links lose": (list[Way],),
    "links thaw": (list[Way],),
    "links reset": (Broken,),
    "links cut": (Broken,),
    "links mend": (Broken,),
    "measure-generate": (Generated,),
}
