"""What several pages show: a machine's condition, a paid request, a pipeline's rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client.dashboard.pictures.pipelines import Box, Row, span_of
from client.dashboard.pictures.ring import RingStage
from client.gateway.copied import copied
from core.protocol import ids
from core.protocol.errors import HeadraceError

Json = Mapping[str, Any]


@dataclass(frozen=True)
class RequestLine:
    """A paid request: what the gateway's ledger says."""

    request_id: str
    receipt_id: str
    model: str
    state: str
    tokens_in: int
    tokens_out: int
    cost_units: int
    reserved_units: int
    operators: tuple[str, ...]
    job_ids: tuple[str, ...]
    first_token_ms: int | None
    took_ms: int | None
    is_checked: bool | None
    error_code: str
    at_ms: int

    @property
    def tokens_per_s(self) -> float | None:
        """While it streamed: from the first token to the last."""
        if self.took_ms is None or self.first_token_ms is None or self.tokens_out < 2:
            return None
        streamed_ms = self.took_ms - self.first_token_ms
        return (self.tokens_out - 1) * 1000 / streamed_ms if streamed_ms > 0 else None


def request_line(row: Any, answers: Sequence[Any]) -> RequestLine:
    """From a ledger's request and its answers."""
    routes = [tuple(json.loads(answer.operators)) for answer in answers]
    return copied(
        RequestLine,
        row,
        operators=routes[0] if routes else (),
        job_ids=tuple(dict.fromkeys(answer.job_id for answer in answers)),
        at_ms=(row.ended_at or row.begun_at or row.created_at) * 1000,
    )


def condition(miner: Json) -> str:
    """One word for a machine: serving, loading, draining, standby or gone."""
    if not miner.get("alive"):
        return "gone"
    state = str(miner.get("state", "")).upper()
    if state == "SERVING":
        return "serving"
    if state == "DRAINING":
        return "draining"
    return "standby" if miner.get("standby") else "loading"


def short_miner(operator: str) -> str:
    """`mnr_4T9W…`, as everywhere."""
    try:
        return ids.short(ids.Kind.MINER, operator)
    except HeadraceError:
        return operator


def miner_href(operator: str) -> str:
    try:
        return f"/miners/{ids.full(ids.Kind.MINER, operator)}"
    except HeadraceError:
        return "/network"


def link_ms(miners: Mapping[str, Json], a: str, b: str) -> float | None:
    """One-way latency between two operators as either measured it; None if neither did."""
    for one, other in ((a, b), (b, a)):
        rho = (miners.get(one.lower()) or {}).get("rhoMs") or {}
        for peer, value in rho.items():
            if peer.lower() == other.lower() and isinstance(value, int | float):
                return float(value)
    return None


def by_operator(miners: Iterable[Json]) -> dict[str, Json]:
    return {str(miner.get("operator", "")).lower(): miner for miner in miners}


def pipeline_rows(
    model_id: str,
    routes: Iterable[Json],
    miners: Iterable[Json],
    name: Callable[[str], str] = short_miner,
) -> list[Row]:
    """Chains that serve a model, fastest first, then the machines of it that are in none."""
    known = by_operator(miners)
    rows, used = [], set[str]()
    for route in routes:
        if route.get("modelId") != model_id:
            continue
        stages = route.get("stages", [])
        used |= {str(stage["operator"]).lower() for stage in stages}
        speed = f"{route.get('latencyMs', 0):.1f} ms a token"
        slots = f"{route.get('usedSlots')}/{route.get('maxSlots')} slots"
        label = f"chain {len(rows) + 1}   {speed}   {slots}"
        rows.append(Row(label, tuple(_route_boxes(stages, known, name))))
    others = [
        miner
        for key, miner in known.items()
        if miner.get("modelId") == model_id and key not in used and condition(miner) != "gone"
    ]
    for miner in others:
        span = miner.get("layers") or miner.get("assigned")
        if span:
            kind = condition(miner)
            operator = str(miner["operator"])
            box = Box(name(operator), miner_href(operator), span[0], span[1], kind)
            why = kind if miner.get("canWork", True) else "may not work"
            rows.append(Row(f"not in a chain: {why}", (box,), is_chain=False))
    return rows


def ring_stages(
    route: Json, miners: Iterable[Json], size: Callable[[int | None], str]
) -> tuple[RingStage, ...]:
    """The machines of one chain with what each has taken of its slots."""
    known, stages = by_operator(miners), route.get("stages", [])
    boxes, found = list(_route_boxes(stages, known, short_miner)), []
    for stage, box in zip(stages, boxes, strict=True):
        miner = known.get(str(stage["operator"]).lower()) or {}
        found.append(
            RingStage(
                name=box.name,
                href=box.href,
                layers=span_of(box.start, box.end),
                memory=size(int(miner.get("memoryBytes") or 0) or None),
                load=box.load or 0.0,
                kind=box.kind,
                link_ms=box.link_ms,
            )
        )
    return tuple(found)


def _route_boxes(
    stages: Sequence[Json], known: Mapping[str, Json], name: Callable[[str], str]
) -> Iterable[Box]:
    for position, stage in enumerate(stages):
        operator = str(stage["operator"])
        after = stages[position + 1]["operator"] if position + 1 < len(stages) else None
        miner = known.get(operator.lower())
        slots = int((miner or {}).get("maxRequests") or 0)
        taken = int((miner or {}).get("activeRequests") or 0)
        yield Box(
            name=name(operator),
            href=miner_href(operator),
            start=int(stage["layerFrom"]),
            end=int(stage["layerTo"]),
            kind=condition(miner) if miner else "gone",
            load=min(1.0, taken / slots) if slots else None,
            note="" if miner is None else _slots_and_memory(miner),
            link_ms=None if after is None else link_ms(known, operator, str(after)),
        )


def _slots_and_memory(miner: Json) -> str:
    slots = f"{miner.get('activeRequests')} of {miner.get('maxRequests')} slots"
    memory = int(miner.get("memoryBytes") or 0) / 2**30
    return f"{slots}, {memory:.1f} GiB" if memory else slots
