"""A town whose requester asks single requests over sessions, with cumulative acknowledgements."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client.context import Context, Model
from client.orders.matcher_api import Goes, Quote
from client.orders.matchers import Matchers
from client.orders.orders import Prompt
from client.pipeline.pipeline import Match
from client.records.store import ClientStore
from client.sessions.answering import Answered, Ask, AskTerms, Said
from client.sessions.budget import Life
from client.sessions.pool import SessionPool
from core.money.pricing import cost_nano
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import MatcherUnreachable, NoCapacity
from core.runtime.clock import SystemClock
from core.runtime.folders import Folders
from core.runtime.settings import SessionSettings as Sizes
from core.runtime.settings import load
from tests.town.machines import Machine
from tests.town.orders import DOMAIN, MATCHER, REQUESTER
from tests.town.town import FEE_BPS, PRICE_IN, PRICE_OUT, Town

SMALL = Sizes(requests=64, tokens_in=4000, tokens_out=4000, in_flight=4, pipelines=3, queue="5s")


@dataclass
class Heard:
    """What a reader of one answer got."""

    said: list[Said] = field(default_factory=list)
    answered: Answered | None = None

    @property
    def tokens(self) -> list[int]:
        return [said.token for said in self.said]


class Village(Town):
    """A town with prices, terms and cumulative acknowledgements."""

    def __init__(self, folder: Path, model_dir: Path) -> None:
        super().__init__(folder, model_dir)
        self.chain.longest_s = (7200, 3600)
        self.closed: set[str] = set()
        self.history: list[tuple[str, t.Ack]] = []
        self.is_away = False
        self.opening_fee = 0
        self.most_open = 10**9
        self.turned_away = 0  # orders beyond that
        self.running: list[SessionPool] = []
        self._terms: t.Terms | None = None

    async def close(self) -> None:
        for sessions in self.running:
            await sessions.close()
        await super().close()

    async def quote(
        self, model_id: str, tokens_in: int, tokens_out: int, terms: t.Terms | None = None
    ) -> Quote:
        return Quote(PRICE_IN, PRICE_OUT, [], MATCHER.address, FEE_BPS, self.opening_fee)

    async def open_job(
        self, signed: t.SignedOrder, domain: signing.Domain, goes_on: Goes | None = None
    ) -> Match:
        if len(self.matches) - len(self.closed) >= self.most_open:
            self.turned_away += 1
            raise NoCapacity("no pipeline", "there is no further one", busy=True)
        assert signing.binds_its_terms(signed)
        self._terms = signed.terms
        return await super().open_job(signed, domain, goes_on)

    def next_plan(self) -> list[Machine]:
        """A session that takes requests has its machines already."""
        for sessions in self.running:
            for session in sessions.sessions():
                if session.use.life is Life.OPEN:
                    return [self.machine(stage.operator) for stage in session.match.plan]
        return super().next_plan()

    def _route(self, excluded: set[str], before: Match | None) -> list[Machine]:
        terms = self._terms
        barred = {
            m.signer.address
            for m in self.machines
            if terms is not None and not terms.allows(m.signer.address)
        }
        return super()._route(excluded | barred, before)

    async def acknowledge(
        self, job_id: str, ack: t.Ack, signature: str, *, closing: bool = False
    ) -> dict[str, Any]:
        if self.is_away:
            raise MatcherUnreachable("no answer from the matcher", "it is away")
        before = self.acks.get(job_id)
        assert signing.is_signed_by(DOMAIN, ack, signature, REQUESTER.address)
        if before is not None:
            assert ack.tokens_in >= before.tokens_in and ack.tokens_out >= before.tokens_out
        assert job_id not in self.closed or ack == before, "nothing follows the last word"
        self.acks[job_id] = ack
        self.history.append((job_id, ack))
        if job_id not in self.closed and self._adds(job_id, ack):
            await super().acknowledge(job_id, ack, signature)
        if closing and job_id not in self.closed:
            self.closed.add(job_id)
            self.chain.end(job_id)
        return {}

    def _adds(self, job_id: str, ack: t.Ack) -> bool:
        job = self.chain.jobs[job_id]
        return ack.tokens_in > job.tokens_in or ack.tokens_out > job.tokens_out

    def paid_for(self, match: Match) -> int:
        """What a session's Acks count, in nano units."""
        job, order = self.chain.jobs[match.job_id], match.signed.order
        counts = job.tokens_in, job.tokens_out
        return cost_nano(self.spec.layer_units, *counts, order.price_in, order.price_out)

    @property
    def paid_nano(self) -> int:
        """What its sessions' Acks count, in nano units."""
        return sum(self.paid_for(match) for match in self.matches)

    @property
    def model(self) -> Model:
        return Model("tiny", signing.model_id(self.spec), self.spec)

    def matchers(self) -> Matchers:
        """What a program of the requester asks."""
        return Matchers([(_Api(self), None)])  # type: ignore[list-item]

    def sessions(
        self, sizes: Sizes = SMALL, *, clock: SystemClock | None = None, **settings: Any
    ) -> SessionPool:
        """The requester's program; another one after it finds the same records."""
        context = _Context(self, settings)
        sessions = SessionPool(context, REQUESTER, sizes=sizes, clock=clock)
        self.running.append(sessions)
        return sessions

    def died(self, sessions: SessionPool) -> None:
        """The program is gone without a word: nothing of it runs, its lock is free."""
        self.running.remove(sessions)
        for task in [*sessions._tasks, sessions._ticking, sessions._recovering]:
            if task is not None:
                task.cancel()
        for session in sessions.sessions():
            for task in [*session._tasks, *session._loops]:
                task.cancel()
            for channel in session._channels.values():
                channel._writer.transport.abort()
        sessions._keeper._file.close()


class _Context(Context):
    def __init__(self, village: Village, settings: dict[str, Any]) -> None:
        folders = Folders.at(village.folder)
        super().__init__(load(flags=settings, environ={}, folders=folders), village.chain)
        object.__setattr__(self, "village", village)

    def matcher(self) -> Any:
        return self.village.matchers()  # type: ignore[attr-defined]

    def store(self) -> ClientStore:
        return ClientStore(self.village.folder / "client.sqlite")  # type: ignore[attr-defined]


class _Api:
    """The village as a matcher's HTTP client, which has a life of its own."""

    def __init__(self, village: Village) -> None:
        self.quote, self.open_job = village.quote, village.open_job
        self.acknowledge = village.acknowledge

    async def close(self) -> None: ...


def ask(village: Village, prompt: Prompt, name: str = "r", **terms: Any) -> Ask:
    return Ask(name, village.model, prompt, AskTerms(**terms))


async def hear(items: AsyncGenerator[Said | Answered, None]) -> Heard:
    heard = Heard()
    async for item in items:
        if isinstance(item, Answered):
            heard.answered = item
        else:
            assert item.step == len(heard.said)
            heard.said.append(item)
    return heard
