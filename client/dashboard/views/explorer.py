"""The chain as this network uses it: events newest first, ids, and the contracts' rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from client.dashboard.sources.chain_log import LoggedEvent
from client.dashboard.views.meaning import WORDS
from client.gateway.copied import copied
from core.protocol.units import whole_units


@dataclass(frozen=True)
class Argument:
    """One value of an event; `kind` says what its link leads to."""

    name: str
    value: str
    kind: str  # text, address, job, dispute, model, units, moment
    note: str = ""


@dataclass(frozen=True)
class EventLine:
    """An event as people read it."""

    id: int
    contract: str
    name: str
    words: str
    arguments: tuple[Argument, ...]
    tx: str
    block: int
    log_index: int
    at_s: int | None


@dataclass(frozen=True)
class Explorer:
    """Events of everything, or of one subject."""

    title: str
    events: tuple[EventLine, ...]
    next_before: int | None
    chain_id: int | None
    block: int | None
    total_events: int
    at_ms: int
    problem: str
    subject: str = ""
    subject_kind: str = ""
    names: tuple[str, ...] = ()
    chosen: str = ""
    contracts: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    facts: tuple[tuple[str, str], ...] = ()


#: Seconds since 1970.
_MOMENTS = {
    "until",
    "endsAt",
    "expiry",
    "finalAt",
    "commitUntil",
    "revealUntil",
    "leaveAt",
    "readyAt",
    "deadline",
    "payoutAt",
    "jailUntil",
}
_SOME_TIME_AGO_S = 10**9
#: What an argument is, where its name says so.
_KINDS = {"job": "job", "source": "job", "dispute": "dispute"} | dict.fromkeys(
    ("modelId", "model"), "model"
)
_UNITS = {
    "amount",
    "stake",
    "bond",
    "slashed",
    "toChallenger",
    "toVictim",
    "burned",
    "cap",
    "delta",
    "cumulative",
    "value",
}


#: Of these the whole units are shown.
_NANO_UNITS = {
    "nano",
    "maxNano",
    "refundedNano",
    "paidNano",
    "withheldNano",
    "payNano",
    "matcherNano",
    "protocolNano",
    "refundNano",
}


def event_line(event: LoggedEvent) -> EventLine:
    arguments = tuple(
        argument
        for name, value in event.args.items()
        for argument in _arguments(event, name, value)
    )
    return copied(EventLine, event, arguments=arguments, words=WORDS.get(event.name, ""))


def _arguments(event: LoggedEvent, name: str, value: Any) -> Iterable[Argument]:
    if isinstance(value, Mapping) and value.keys() >= {"operator", "layerFrom", "layerTo"}:
        first, last = int(value["layerFrom"]), int(value["layerTo"]) - 1
        held = f"layers {first}–{last}" if last > first else f"layer {first}"
        yield Argument(name, str(value["operator"]), "address", held)
    elif isinstance(value, Mapping):
        for inner, of_it in value.items():
            yield from _arguments(event, f"{name}.{inner}", of_it)
    elif isinstance(value, list):
        for position, of_it in enumerate(value):
            yield from _arguments(event, f"{name}[{position}]", of_it)
    elif (told := name.partition("["))[0] in _NANO_UNITS:
        label = told[0].removesuffix("Nano") + told[1] + told[2]
        yield Argument(label, str(whole_units(value)), "units")
    else:
        yield Argument(name, str(value), _kind(event, name, value))


def _kind(event: LoggedEvent, name: str, value: Any) -> str:
    if isinstance(value, str) and value.startswith("0x"):
        if len(value) == 42:
            return "address"
        if name == "id" and event.contract in ("ToleranceGame", "ModelRegistry"):
            return "dispute" if event.contract == "ToleranceGame" else "model"
        return _KINDS.get(name, "text") if len(value) == 66 and int(value, 16) else "text"
    if isinstance(value, int) and not isinstance(value, bool):
        if name in _UNITS:
            return "units"
        if name in _MOMENTS and value > _SOME_TIME_AGO_S:
            return "moment"
    return "text"


def rules(parameters: Mapping[str, Any] | None) -> dict[str, dict[str, str]]:
    """What each contract was deployed with, groups of values taken apart."""
    return {
        contract: {
            name: str(value)
            for group, found in values.items()
            for name, value in (found.items() if isinstance(found, Mapping) else [(group, found)])
        }
        for contract, values in (parameters or {}).items()
    }
