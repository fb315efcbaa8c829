"""What do the devnet's commands print with --json? They construct one of these types each."""

from __future__ import annotations

import msgspec

from core.runtime.commands.results import Result


class Up(Result, frozen=True, forbid_unknown_fields=False):
    """`up`."""

    network: str
    chain: str
    matcher: str
    gateway: str
    try_: str = msgspec.field(name="try")
    or_: str = msgspec.field(name="or")
    watch: str
    stop: str


class Down(Result, frozen=True):
    """`down`."""

    stopped: list[str]
    purged: bool


class ProgramRow(Result, frozen=True):
    """`status`: one program."""

    program: str
    state: str
    layers: str
    at: str
    pid: int
    alive: bool
    log: str


class ProgramLog(Result, frozen=True):
    """`logs`: the last lines of a program's log."""

    program: str
    log: str
    lines: list[str]


class AddedLine(Result, frozen=True):
    """`logs --follow`: a line that was added to a program's log."""

    program: str
    line: str


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


class ChainClock(Result, frozen=True):
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


class WayRow(Result, frozen=True, forbid_unknown_fields=False, rename="camel"):
    """`links show`, `set`, `freeze`, `lose` and `thaw`: one direction of a link."""

    link: str
    endpoint: str
    way: str
    latency_ms: float
    jitter_ms: float
    bytes_per_s: float = msgspec.field(name="bytesPerS")
    state: str
    carried_bytes: int
    connections: int


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
