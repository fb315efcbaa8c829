"""The first page: is the network well, how long does the money last, what runs, what is wrong?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from client.dashboard.pictures.ring import RingStage
from client.dashboard.sources.cached import Dated
from client.dashboard.views.activity import Activity
from client.dashboard.views.common import (
    Json,
    RequestLine,
    condition,
    ring_stages,
    short_miner,
)
from client.dashboard.views.jobs import OrderLine
from client.gateway.copied import copied
from client.wallet import Balances

WARN_DAYS = (7.0, 1.0, 1 / 24)
DAY_S = 86_400


@dataclass(frozen=True)
class NetworkCard:
    """Counts of machines and models."""

    machines: int
    serving: int
    models: int
    models_covered: int
    block: int | None
    registry_age_ms: int | None
    at_ms: int
    problem: str


@dataclass(frozen=True)
class WalletCard:
    """The requester's money, and for how long it lasts at the pace of the last days."""

    address: str
    deposited_units: int | None
    wallet_units: int | None
    locked_units: int
    gas_wei: int | None
    spent_per_day_units: int
    lasts_s: float | None
    at_ms: int
    problem: str


@dataclass(frozen=True)
class RunningBatch:
    """A batch that is not over."""

    batch_id: str
    model: str
    status: str
    done: int
    failed: int
    total: int
    cost_units: int


@dataclass(frozen=True)
class Notice:
    """Something a person should look at."""

    level: str  # warn, bad
    text: str
    href: str


@dataclass(frozen=True)
class FastestChain:
    """The fastest chain now, whose machines an answer goes through."""

    model: str
    ms_per_token: float
    stages: tuple[RingStage, ...]


@dataclass(frozen=True)
class Overview:
    """The page."""

    network: NetworkCard
    wallet: WalletCard
    running: tuple[RunningBatch, ...]
    submitted: tuple[OrderLine, ...]  # by `client submit`, and still seen to by a program here
    chats: tuple[RequestLine, ...]
    receipts: tuple[RequestLine, ...]
    way: FastestChain | None
    activity: Activity
    span: str
    spans: tuple[str, ...]
    warnings: tuple[Notice, ...]
    at_ms: int


def network_card(
    status: Dated[Json], models: Dated[list[Json]], miners: Dated[list[Json]]
) -> NetworkCard:
    """Counts, and the age of what the matcher last saw in the swarm."""
    offered, machines = models.value or [], miners.value or []
    alive = [miner for miner in machines if condition(miner) != "gone"]
    look = (status.value or {}).get("lastLook") or {}
    return NetworkCard(
        machines=len(alive),
        serving=sum(condition(miner) == "serving" for miner in alive),
        models=len(offered),
        models_covered=sum(bool(model.get("covered")) for model in offered),
        block=((status.value or {}).get("chain") or {}).get("block"),
        registry_age_ms=look.get("ageMs"),
        at_ms=miners.at_ms,
        problem=status.problem or miners.problem,
    )


def wallet_card(
    balances: Dated[Balances], payer: str, locked_units: int, per_day_units: int
) -> WalletCard:
    """At no spending the money lasts for ever, which is None."""
    found, lasts_s = balances.value, None
    if found is not None and per_day_units > 0:
        lasts_s = (found.deposited + found.wallet) * DAY_S / per_day_units
    return WalletCard(
        address=payer,
        deposited_units=None if found is None else found.deposited,
        wallet_units=None if found is None else found.wallet,
        locked_units=locked_units,
        gas_wei=None if found is None else found.gas_wei,
        spent_per_day_units=per_day_units,
        lasts_s=lasts_s,
        at_ms=balances.at_ms,
        problem=balances.problem if found is None else "",
    )


def fastest_way(
    routes: Iterable[Json],
    miners: Iterable[Json],
    name_of: Callable[[str], str],
    size: Callable[[int | None], str],
) -> FastestChain | None:
    """None where no chain serves."""
    best = min(routes, key=lambda route: float(route["latencyMs"]), default=None)
    if best is None:
        return None
    stages = ring_stages(best, miners, size)
    return FastestChain(name_of(str(best["modelId"])), float(best["latencyMs"]), stages)


def spent_per_day(usage: Iterable[Json]) -> int:
    """Mean over the days on which something was spent, rounded up."""
    days: dict[str, int] = {}
    for row in usage:
        days[str(row["day"])] = days.get(str(row["day"]), 0) + int(row["cost_units"])
    spent = [cost for cost in days.values() if cost > 0]
    return -(-sum(spent) // len(spent)) if spent else 0


def running_batch(row: Any) -> RunningBatch:
    lines = {"done": row.lines_done, "failed": row.lines_failed, "total": row.lines_total}
    return copied(RunningBatch, row, **lines)


def warnings(
    network: NetworkCard,
    wallet: WalletCard,
    models: Iterable[Json],
    miners: Iterable[Json],
    name_of: Callable[[str], str],
) -> Iterable[Notice]:
    """What a person should look at, in the order of the page."""
    if network.problem:
        yield Notice("bad", f"the matcher cannot be read: {network.problem}", "/network")
    if wallet.problem:
        yield Notice("bad", f"the wallet cannot be read: {wallet.problem}", "/wallet")
    if wallet.gas_wei == 0:
        yield Notice("bad", "the wallet has no ETH for fees", "/wallet")
    if wallet.lasts_s is not None and wallet.lasts_s < WARN_DAYS[0] * DAY_S:
        level = "bad" if wallet.lasts_s < WARN_DAYS[1] * DAY_S else "warn"
        hours = wallet.lasts_s / 3600
        yield Notice(level, f"at this pace the money lasts {hours:.0f} h", "/wallet")
    for model in models:
        name, href = name_of(str(model["modelId"])), "/network"
        if not model.get("covered"):
            holes = f"layers from {model.get('coveredTo')} of {model.get('layers')} have no machine"
            yield Notice("warn", f"{name} is not served: {holes}", href)
    for miner in miners:
        if condition(miner) == "gone":
            silent_s = int(miner.get("ageMs", 0)) / 1000
            name = short_miner(str(miner["operator"]))
            yield Notice("warn", f"{name} has been silent for {silent_s:.0f} s", "/network")
