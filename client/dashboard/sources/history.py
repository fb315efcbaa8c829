"""What did the network do, day by day, and what did jobs pay each machine? Out of the chain log."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from core.protocol.units import whole_units

#: Events of `MinerRegistry` that change what is staked, with the sign and the argument.
_STAKE = {
    "MinerRegistered": (1, "stake"),
    "StakeAdded": (1, "amount"),
    "Withdrawn": (-1, "amount"),
    "Slashed": (-1, "amount"),
}
#: What a job counted may be said so long before it is paid: windows are at most a week.
_COUNTED_BEFORE_S = 14 * 86_400


@dataclass(frozen=True)
class NetworkDay:
    """One day (UTC, by the chain's clock) of the whole network; amounts in base units."""

    day: str
    jobs: int
    tokens_in: int
    tokens_out: int
    paid_units: int  # to machines
    fee_units: int  # to matchers and the protocol
    staked_units: int  # by miners, at its end
    slashed_units: int


@dataclass(frozen=True)
class Earner:
    """What jobs paid one operator in all these days."""

    operator: str
    jobs: int
    paid_units: int


@dataclass(frozen=True)
class History:
    """Days without a gap, oldest first, and operators, the best paid first."""

    days: tuple[NetworkDay, ...]
    earners: tuple[Earner, ...]


def read_history(db: sqlite3.Connection, days: int, now_s: int) -> History:
    """The last `days` days up to now, or up to the newest block where the chain is ahead."""
    (newest,) = db.execute("SELECT max(at_s) FROM block_time").fetchone()
    last = datetime.fromtimestamp(max(now_s, newest or 0), UTC).date()
    names = [str(last - timedelta(days=back)) for back in reversed(range(days))]
    since_s = int(datetime.fromisoformat(names[0]).replace(tzinfo=UTC).timestamp())
    tokens = _tokens(db, since_s - _COUNTED_BEFORE_S)
    sums = {name: dict[str, int]() for name in names}
    pay, jobs = dict[str, int](), dict[str, int]()
    for day, _, event in _rows(db, "Escrow", ("Paid",), since_s):
        if (sum_ := sums.get(day)) is None:
            continue
        took = tokens.get(event["job"].lower(), (0, 0))
        _add(sum_, jobs=1, tokens_in=took[0], tokens_out=took[1])
        _add(sum_, paid=sum(map(int, event["payNano"])))
        _add(sum_, fees=int(event["matcherNano"]) + int(event["protocolNano"]))
        for operator, nano in zip(event["operators"], event["payNano"], strict=True):
            pay[operator] = pay.get(operator, 0) + int(nano)
            jobs[operator] = jobs.get(operator, 0) + 1
    staked = 0
    for day, name, event in _rows(db, "MinerRegistry", tuple(_STAKE)):
        sign, argument = _STAKE[name]
        change = sign * int(event[argument])
        if day < names[0]:
            staked += change
        elif (sum_ := sums.get(day)) is not None:
            _add(sum_, stake=change, slashed=int(event["amount"]) if name == "Slashed" else 0)
    found = []
    for name in names:
        sum_ = sums[name]
        staked += sum_.get("stake", 0)
        found.append(
            NetworkDay(
                day=name,
                jobs=sum_.get("jobs", 0),
                tokens_in=sum_.get("tokens_in", 0),
                tokens_out=sum_.get("tokens_out", 0),
                paid_units=whole_units(sum_.get("paid", 0)),
                fee_units=whole_units(sum_.get("fees", 0)),
                staked_units=staked,
                slashed_units=sum_.get("slashed", 0),
            )
        )
    best = sorted(pay, key=lambda operator: (-pay[operator], operator))
    earners = tuple(Earner(one, jobs[one], whole_units(pay[one])) for one in best)
    return History(tuple(found), earners)


def _add(sums: dict[str, int], **amounts: int) -> None:
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount


def _rows(
    db: sqlite3.Connection, contract: str, names: tuple[str, ...], since_s: int = 0
) -> Iterator[tuple[str, str, Any]]:
    """(day, name, arguments) of events whose block's time is known, oldest first."""
    marks = ",".join("?" * len(names))
    rows = db.execute(
        "SELECT date(t.at_s, 'unixepoch'), e.name, e.args FROM event e "
        "JOIN block_time t ON t.block = e.block "
        f"WHERE e.contract = ? AND e.name IN ({marks}) AND t.at_s >= ? ORDER BY e.id",
        (contract, *names, since_s),
    )
    for day, name, args in rows:
        yield day, name, json.loads(args)


def _tokens(db: sqlite3.Connection, since_s: int) -> dict[str, tuple[int, int]]:
    """The most that was counted, by job: on chain, or by the Ack that a job ended with."""
    rows = db.execute(
        "SELECT s.subject, json_extract(e.args, '$.tokensIn'), json_extract(e.args, '$.tokensOut') "
        "FROM event e JOIN block_time t ON t.block = e.block JOIN subject s ON s.event_id = e.id "
        "WHERE e.name IN ('JobAcknowledged', 'JobDelivered') AND t.at_s >= ? UNION ALL "
        "SELECT s.subject, a.tokens_in, a.tokens_out FROM last_ack a "
        "JOIN event e ON e.id = a.event_id JOIN block_time t ON t.block = e.block "
        "JOIN subject s ON s.event_id = e.id WHERE t.at_s >= ?",
        (since_s, since_s),
    )
    found = dict[str, tuple[int, int]]()
    for subject, tokens_in, tokens_out in rows:
        before = found.get(subject, (0, 0))
        found[subject] = max(before[0], tokens_in), max(before[1], tokens_out)
    return found
