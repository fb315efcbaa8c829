"""Who matches a fleet's orders, where there is no matcher?

A job is matched as soon as its stages have accepted it; every acknowledgement is kept and held
against its order. Everything else of a requester is the product's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks.engine.rig.chain import DOMAIN, MATCHER_KEY, RichChain, signer, spec_of
from benchmarks.engine.rig.fleet import Fleet, Member
from client.orders.matcher_api import Goes
from client.orders.orders import OrderTerms
from client.pipeline.pipeline import Match
from core.engine.weights.weights import weight_roots
from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.errors import NoCapacity
from core.runtime.network.channel import Peers, StreamIdentity
from tests.town.orders import terms as offered
from tests.town.proposing import propose

#: As the matcher has it for an order that goes on with another.
PROPOSE_S = 2.0
MATCHER = signer(MATCHER_KEY)


class Market:
    """A `MatcherApi` over a fleet. `turn` decides which of equal members new orders prefer."""

    def __init__(self, fleet: Fleet) -> None:
        self.turn = 0
        self.matches: dict[str, Match] = {}
        self.acks: dict[str, t.Ack] = {}
        weights = weight_roots(fleet.model)
        self.chain = RichChain(lambda *span: commit.to_hex(weights.shard_root(*span)))
        self._fleet, self._spec = fleet, spec_of(fleet.model)
        self._late: set[asyncio.Task[dict[str, Any]]] = set()
        self._peers = Peers(StreamIdentity(MATCHER, DOMAIN))

    async def close(self) -> None:
        await self._peers.close()

    def plan(self) -> list[Member]:
        """Who would serve an order now."""
        return self._route(set(), None)

    def forget(self) -> None:
        """Of all jobs, once their answers are in."""
        self.matches.clear()
        self.acks.clear()
        self.chain.jobs.clear()

    async def open_job(
        self, signed: t.SignedOrder, domain: signing.Domain, goes_on: Goes | None = None
    ) -> Match:
        """Propose to members until all of a chain accept. Raises NoCapacity."""
        excluded = set(goes_on.lost) if goes_on else set()
        before = self.matches[goes_on.continues] if goes_on else None
        while True:
            route = self._route(excluded, before)
            plan = tuple(t.Stage(m.operator, *m.layers) for m in route)
            endpoints = [m.endpoint for m in route]
            _, silent = await propose(
                self._peers, signed, plan, endpoints, before, answer_s=PROPOSE_S
            )
            if not silent:
                break
            excluded |= silent
        job_id, plan_hash = signing.job_id(domain, signed.order), signing.plan_hash(plan)
        await self._tell(route, job_id, plan_hash)
        self.chain.told(job_id, plan_hash)
        match = Match(job_id, signed, plan, tuple(endpoints), t.ZERO_HASH)
        self.matches[job_id] = match
        return match

    async def acknowledge(self, job_id: str, ack: t.Ack, signature: str) -> dict[str, Any]:
        """Take an acknowledgement. It must be of the job, by its requester, and within its caps."""
        order = self.matches[job_id].signed.order
        if (
            not signing.is_signed_by(DOMAIN, ack, signature, order.requester)
            or ack.order_hash != signing.order_hash(order)
            or ack.plan_hash != self.matches[job_id].plan_hash
            or ack.tokens_in > order.max_tokens_in
            or ack.tokens_out > order.max_tokens_out
        ):
            raise RuntimeError(f"job {job_id} is acknowledged with {ack}")
        self.acks[job_id] = ack
        return {}

    async def _tell(self, route: Sequence[Member], job_id: str, plan_hash: str) -> None:
        """The match, to every member; one that died or froze since then holds no other up."""
        telling = {
            asyncio.create_task(member.ask("match", job=job_id, plan=plan_hash)): member
            for member in route
            if not member.is_dead
        }
        told, late = await asyncio.wait(telling, timeout=PROPOSE_S)
        # Who is frozen answers when it thaws: that must not be taken for another answer.
        self._late |= late
        for task in late:
            task.add_done_callback(self._late.discard)
        for task in told:
            if task.exception() and not telling[task].is_dead:
                task.result()

    def _route(self, excluded: set[str], before: Match | None) -> list[Member]:
        kept = {stage.operator for stage in before.plan} if before else set()
        route = []
        for layers in self._fleet.ranges:
            equal = [
                m for m in self._fleet.alive if m.layers == layers and m.operator not in excluded
            ]
            if not equal:
                raise NoCapacity("no pipeline", f"nobody is left for layers {layers}")
            turned = [*equal[self.turn % len(equal) :], *equal[: self.turn % len(equal)]]
            route.append(min(turned, key=lambda m: m.operator not in kept))
        return route


def terms(chain_now: int) -> OrderTerms:
    """What every order of the benchmark offers."""
    deadline = chain_now + 3600
    return offered(price_in=1, price_out=1, matcher=MATCHER.address, deadline=deadline)
