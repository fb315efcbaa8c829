"""What does the API say, as JSON-ready values?

camelCase keys; money as integers of base units under `…Units` with the printed form beside it;
prices as nano base units per token and layer unit with `…Shown` through the whole model; times of
the chain in seconds, ages in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from core.protocol.errors import HeadraceError, ModelUnknown, NoCapacity
from core.protocol.ids import Kind, short
from core.protocol.types import LayerRange, ModelSpec, Stage, Terms
from core.protocol.units import format_price, format_token, price_of_nano
from matcher.audits.audit_desk import Pays
from matcher.fleet.fleet_view import Sighting
from matcher.planning.planner import Placement, fixed_by_owner
from matcher.records.jobs import Job
from matcher.routes.offers import Price, StageOffer, cheapest, covered_to, serves
from matcher.routes.routes import Chosen
from matcher.world import MatcherWorld
from scheduler.routing.parallax_route import NoRoute

Json = dict[str, Any]


def layers_json(layers: LayerRange | None) -> list[int] | None:
    """Half-open, as everywhere."""
    return None if layers is None else [layers.start, layers.end]


def price_json(price: Price, spec: ModelSpec) -> Json:
    """Both prices, for programs and for people."""
    return {
        "priceIn": price.price_in,
        "priceOut": price.price_out,
        "priceInShown": format_price(price_of_nano(price.price_in, spec.layer_units)),
        "priceOutShown": format_price(price_of_nano(price.price_out, spec.layer_units)),
    }


def stages_json(plan: Iterable[Stage], endpoints: Iterable[str]) -> list[Json]:
    return [
        {**msgspec.to_builtins(stage), "endpoint": endpoint}
        for stage, endpoint in zip(plan, endpoints, strict=True)
    ]


def model_json(world: MatcherWorld, model_id: str, now_ms: int) -> Json:
    """One model: what it is, whether a whole pipeline serves it, at which prices."""
    spec = world.models[model_id]
    present, offers = world.present(model_id, now_ms), world.offers(model_id, now_ms)
    low = cheapest(offers, spec, 1, 1, world.partial)
    high = Price(
        max((offer.price_in for offer in offers), default=0),
        max((offer.price_out for offer in offers), default=0),
    )
    return {
        "modelId": model_id,
        "shortId": short(Kind.MODEL, model_id),
        "spec": msgspec.to_builtins(spec),
        "layers": spec.layers,
        "layerUnits": spec.layer_units,
        "context": spec.context,
        "machines": len(present),
        "serving": len(offers),
        "covered": serves(offers, spec.layers, world.partial),
        "coveredTo": covered_to(offers, spec.layers, world.partial),
        "copies": copies(offers, spec.layers),
        "lowestPrice": None if low is None else price_json(low, spec),
        "highestPrice": price_json(high, spec) if offers else None,
    }


def copies(offers: Iterable[StageOffer], layers: int) -> int:
    """How many machines hold the layer that fewest hold."""
    held = [0] * layers
    for offer in offers:
        for layer in range(offer.layers.start, min(offer.layers.end, layers)):
            held[layer] += 1
    return min(held, default=0)


def miner_json(world: MatcherWorld, sighting: Sighting, now_ms: int) -> Json:
    """One machine: its own words, the chain's, and ours."""
    record = sighting.record
    standing = world.standings.get(sighting.operator)
    place, why = world.marks.of(sighting.operator)
    spec, placement = world.models.get(record.model_id), world.placements.get(record.model_id)
    told = placement.assignments.get(sighting.operator) if placement is not None else None
    shown = price_json(Price(record.price_in, record.price_out), spec) if spec else {}
    return {
        "operator": sighting.operator,
        "shortId": short(Kind.MINER, sighting.operator),
        "owner": standing.owner if standing else None,
        "stakeUnits": standing.stake_units if standing else None,
        "stake": format_token(standing.stake_units) if standing else None,
        "canWork": bool(standing and standing.can_work),
        "registered": [
            {"class": one.kind, "memoryBytes": one.memory_mib * 2**20}
            for one in (standing.machines if standing else ())
        ],
        "standing": place,
        "standingWhy": why,
        "state": record.state,
        "alive": sighting.alive(now_ms),
        "ageMs": sighting.age_ms(now_ms),
        "endpoint": record.endpoint,
        "region": world.region_of(sighting),
        "statedRegion": record.region,
        "modelId": record.model_id,
        "layers": layers_json(record.layers),
        "assigned": layers_json(told),
        "fixedByOwner": sighting.operator in fixed_by_owner([sighting]),
        "standby": bool(placement and sighting.operator in placement.standby),
        "memoryBytes": record.memory_bytes,
        "tflops": record.tflops,
        "bandwidthGbS": record.bandwidth_gb_s,
        "tauMsPerLayer": record.tau_ms_per_layer,
        "rhoMs": record.rho_ms,
        "linkMbS": record.link_mb_s,
        "context": record.context,
        "kvFreeTokens": record.kv_free_tokens,
        "maxRequests": record.max_requests,
        "activeRequests": record.active_requests,
        "reservedRequests": world.promised(now_ms).get(sighting.operator, 0),
        "priceIn": record.price_in,
        "priceOut": record.price_out,
        **shown,
        "sequence": sighting.sequence,
        "allocation": record.allocation,
    }


def placement_json(model_id: str, placement: Placement) -> Json:
    """Who was told what, and why."""
    return {
        "modelId": model_id,
        "assignments": {op: layers_json(at) for op, at in sorted(placement.assignments.items())},
        "standby": list(placement.standby),
        "reason": placement.reason,
        "explanation": list(placement.explanation),
        "decidedAtMs": placement.decided_ms,
    }


def audits_json(pays: Pays) -> Json | None:
    """The auditors that this matcher pays for orders that name them; None: it pays none."""
    if not pays.auditors:
        return None
    return {
        "auditors": list(pays.auditors),
        "rateBps": pays.rate_bps,
        "feeUnits": pays.fee_units,
        "capUnitsPerDay": pays.cap_units,
        "withinS": pays.within_s,
    }


def quote_json(
    world: MatcherWorld,
    model_id: str,
    tokens_in: int,
    tokens_out: int,
    now_ms: int,
    terms: Terms | None = None,
) -> Json | HeadraceError:
    """The least an order must offer now, and the chain that would serve it; else NoCapacity."""
    spec = world.models.get(model_id)
    if spec is None or model_id not in world.shapes:
        return ModelUnknown(f"no model {model_id}", why="it is not in the ModelRegistry")
    barred, last = world.barred(terms), frozenset(world.marks.last)
    asked = (spec, model_id, tokens_in, tokens_out, now_ms)
    found = _quote(world, *asked, barred | last)
    if last and (isinstance(found, HeadraceError) or not found["route"]):
        found = _quote(world, *asked, barred)
    return found


def _quote(
    world: MatcherWorld,
    spec: ModelSpec,
    model_id: str,
    tokens_in: int,
    tokens_out: int,
    now_ms: int,
    barred: frozenset[str],
) -> Json | HeadraceError:
    offers = [o for o in world.offers(model_id, now_ms) if o.operator not in barred]
    partial = world.partial
    free = [offer for offer in offers if offer.free]
    # Where all are busy an order waits for them (`MatcherSettings.queue_s`), at the same price.
    able = free if serves(free, spec.layers, partial) else offers
    price = cheapest(able, spec, tokens_in, tokens_out, partial)
    if price is None:
        hole = covered_to(offers, spec.layers, partial)
        return NoCapacity(
            "no pipeline serves this model now",
            why=f"of {spec.layers} layers, no chain of serving machines reaches past layer {hole}",
            next_step="try again in a moment",
            covered_to=hole,
            layers=spec.layers,
        )
    dear = [
        o.operator for o in able if o.price_in > price.price_in or o.price_out > price.price_out
    ]
    found = world.routes[model_id].fastest(now_ms, [*dear, *barred])
    chosen = Chosen((), (), 0.0) if isinstance(found, NoRoute) else found
    amount = price.cost(spec.layer_units, tokens_in, tokens_out)
    return {
        "modelId": model_id,
        "tokensIn": tokens_in,
        "tokensOut": tokens_out,
        **price_json(price, spec),
        "layerUnits": spec.layer_units,
        "amountUnits": amount,
        "amount": format_token(amount),
        "route": stages_json(chosen.plan, chosen.endpoints),
        "latencyMs": round(chosen.latency_ms, 3),
    }


def routes_json(world: MatcherWorld, model_id: str, now_ms: int) -> list[Json]:
    """Disjoint chains that serve a model now, fastest first, with how busy each is."""
    routes = world.routes.get(model_id)
    if routes is None:
        return []
    by_operator = {offer.operator: offer for offer in routes.offers(now_ms)}
    found = list[Json]()
    for chosen in routes.disjoint(now_ms):
        members = [by_operator[stage.operator] for stage in chosen.plan]
        found.append(
            {
                "modelId": model_id,
                "stages": stages_json(chosen.plan, chosen.endpoints),
                "latencyMs": round(chosen.latency_ms, 3),
                "usedSlots": max(offer.used_slots for offer in members),
                "maxSlots": min(offer.max_slots for offer in members),
            }
        )
    return found


def job_json(job: Job) -> Json:
    """One job in a list."""
    order = job.signed.order
    return {
        "jobId": job.job_id,
        "shortId": short(Kind.JOB, job.job_id),
        "state": job.state,
        "requester": order.requester,
        "modelId": order.model_id,
        "requests": order.requests,
        "stages": stages_json(job.plan, job.endpoints),
        "tokensIn": job.tokens_in,
        "tokensOut": job.tokens_out,
        "lockedUnits": job.locked_units,
        "locked": format_token(job.locked_units),
        "paidUnits": job.paid_units,
        "refundedUnits": job.refunded_units,
        "withheldUnits": job.withheld_units,
        "deadline": order.deadline,
        "finalAt": job.final_at_s or None,
        "finishedAt": job.finished_at_s or None,
        "acknowledged": job.ack is not None,
        "failure": job.failure or None,
        "createdAt": job.created_at,
        "updatedAt": job.updated_at,
    }


def opened_json(job: Job) -> Json:
    """The answer to an order: what its requester needs to dial the stages and check the chain."""
    return {
        "jobId": job.job_id,
        "shortId": short(Kind.JOB, job.job_id),
        "state": job.state,
        "orderHash": job.order_hash,
        "planHash": job.plan_hash,
        "plan": msgspec.to_builtins(list(job.plan)),
        "endpoints": list(job.endpoints),
        "acceptances": msgspec.to_builtins(list(job.acceptances)),
        "lockedUnits": job.locked_units,
        "txHash": job.open_tx,
    }


def job_detail_json(job: Job) -> Json:
    """Everything this matcher knows of a job, signatures included."""
    ended = {"opened": job.open_tx, "delivered": job.deliver_tx, "ended": job.end_tx}
    return {
        **job_json(job),
        **opened_json(job),
        "signedOrder": msgspec.to_builtins(job.signed),
        "receipts": msgspec.to_builtins(list(job.receipts)),
        "ack": None if job.ack is None else msgspec.to_builtins(job.ack),
        "transactions": {name: tx or None for name, tx in ended.items()},
    }
