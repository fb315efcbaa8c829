"""What does a requester ask a matcher over HTTP: offers, a price, to open or settle a job?"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from client.pipeline.pipeline import Match
from core.money import pricing
from core.money.audit_report import SignedReport
from core.money.paid_audits import AuditOffer, Lots, SignedAsk, SignedFinding
from core.protocol import signing, wire
from core.protocol import types as t
from core.protocol.errors import (
    CheckFailed,
    ConfigError,
    HeadraceError,
    MatcherUnreachable,
    UsageError,
    error_from,
)
from core.protocol.foreign import read_json, refuse_deep
from core.protocol.units import price_of_nano
from core.runtime import http_client, origin

ANSWER_TIMEOUT_S = 30.0
CHAIN_TIMEOUT_S = 120.0  # for calls that end in a transaction
T = TypeVar("T")


class Quote(msgspec.Struct, frozen=True, rename="camel"):
    """The least an order must offer now, in nano base units per token and layer unit."""

    price_in: t.U63
    price_out: t.U63
    route: list[_QuotedStage]
    matcher: t.Address
    fee_bps: t.MatcherFeeBps
    opening_fee: t.U63  # base units, whatever comes of the job
    #: The auditor that the matcher pays, if the order names it; None: it pays none.
    audits: AuditOffer | None = None

    @property
    def plan(self) -> tuple[t.Stage, ...]:
        """The stages that would serve it."""
        return tuple(t.Stage(s.operator, s.layer_from, s.layer_to) for s in self.route)

    def cost(self, model: t.ModelSpec, tokens_in: int, tokens_out: int) -> int:
        """Base units for so many tokens, without the opening."""
        prices = self.price_in, self.price_out
        return pricing.cost(model.layer_units, tokens_in, tokens_out, *prices)

    def lock(self, model: t.ModelSpec, tokens_in: int, tokens_out: int) -> int:
        """Base units that an order of so many tokens locks."""
        return self.cost(model, tokens_in, tokens_out) + self.opening_fee

    def prices(self, model: t.ModelSpec) -> tuple[int, int]:
        """Base units per million tokens, in and out."""
        layer_units = model.layer_units
        return price_of_nano(self.price_in, layer_units), price_of_nano(self.price_out, layer_units)


class Goes(msgspec.Struct, frozen=True, rename="camel"):
    """What a new order goes on with: a broken job, and its operators that fell silent."""

    continues: t.Hash32
    lost: frozenset[t.Address]


class _QuotedStage(msgspec.Struct, frozen=True, rename="camel"):
    operator: t.Address
    layer_from: t.U16
    layer_to: t.U16


class _OpenedJob(msgspec.Struct, frozen=True, rename="camel"):
    job_id: t.Hash32
    plan: wire.Plan
    endpoints: wire.Endpoints
    tx_hash: str = ""


class MatcherApi:
    """One matcher. Every call raises MatcherUnreachable, or the error that it answers with."""

    def __init__(self, base_url: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """No traffic yet. Raises ConfigError for an unusable URL."""
        import httpx2

        self._base_url, self._timeout_s = base_url.rstrip("/"), timeout_s
        try:
            self._client = httpx2.AsyncClient(base_url=self._base_url)
        except httpx2.InvalidURL as error:
            raise ConfigError(f"'{base_url}' is not a matcher's URL", str(error)) from None

    async def close(self) -> None:
        await self._client.aclose()

    async def status(self) -> dict[str, Any]:
        """What the matcher says of itself."""
        return await self._ask(dict[str, Any], "GET", "/v1/status")

    async def models(self) -> list[dict[str, Any]]:
        """Models that are served now, with their prices."""
        return await self._list("/v1/models", "models")

    async def miners(self) -> list[dict[str, Any]]:
        """Machines that the matcher sees now, with endpoints, layers and prices."""
        return await self._list("/v1/miners", "miners")

    async def quote(
        self, model_id: str, tokens_in: int, tokens_out: int, terms: t.Terms | None = None
    ) -> Quote:
        """Lowest price at which a whole pipeline that the terms allow would serve this now."""
        params: dict[str, Any] = {"model": model_id}
        params |= {"tokens_in": tokens_in, "tokens_out": tokens_out}
        if terms is not None:
            params |= {"trusted": list(terms.trusted), "avoided": list(terms.avoided)}
        return await self._ask(Quote, "GET", "/v1/quote", params=params)

    async def job(self, job_id: str) -> dict[str, Any]:
        """Where a job stands with the matcher."""
        return await self._ask(dict[str, Any], "GET", f"/v1/jobs/{job_id}")

    async def allocations(self) -> list[dict[str, Any]]:
        """The layers that each machine was told to serve, per model, and why."""
        return await self._list("/v1/allocation", "allocations")

    async def routes(self) -> list[dict[str, Any]]:
        """Disjoint chains that serve now, fastest first, with how busy each is."""
        return await self._list("/v1/routes", "routes")

    async def fleet(self, model: str) -> dict[str, Any]:
        """The machines of a model as a document to plan with."""
        found = await self._ask(dict[str, Any], "GET", "/v1/fleet", params={"model": model})
        return dict(found.get("document", {}))

    async def plan(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """What each method would do with a fleet: `{"method", "plan"}` or `{"method", "error"}`."""
        found = await self._ask(dict[str, Any], "POST", "/v1/plan", body=question)
        return list(found.get("plans", []))

    async def open_job(
        self, signed: t.SignedOrder, domain: signing.Domain, goes_on: Goes | None = None
    ) -> Match:
        """Have the order matched and opened on chain; again with the same order gives the same job.

        Raises CheckFailed if the answer is not about our order.
        """
        body: dict[str, Any] = msgspec.to_builtins(signed)
        if goes_on is not None:
            body |= msgspec.to_builtins(goes_on)
        found = await self._ask(_OpenedJob, "POST", "/v1/orders", body=body)
        expected = signing.job_id(domain, signed.order)
        if found.job_id != expected or len(found.endpoints) != len(found.plan):
            raise CheckFailed(
                "the matcher answered with another job", f"got {found.job_id}, ours is {expected}"
            )
        plan, endpoints = tuple(found.plan), tuple(found.endpoints)
        return Match(found.job_id, signed, plan, endpoints, found.tx_hash)

    async def acknowledge(
        self, job_id: str, ack: t.Ack, signature: str, *, closing: bool = False
    ) -> dict[str, Any]:
        """Hand in an Ack, which the matcher brings on chain, of an open order when it is worth it.

        `closing`: none will follow.
        """
        body: dict[str, Any] = {"ack": ack, "signature": signature}
        if closing:
            body["closing"] = True
        return await self._ask(dict[str, Any], "POST", f"/v1/jobs/{job_id}/ack", body=body)

    async def tell(self, report: SignedReport) -> None:
        """Hand in an auditor's report. Raises UsageError for an auditor it does not go by."""
        await self._ask(dict[str, Any], "POST", "/v1/audits", body=report)

    async def lots(self, signed: SignedAsk) -> Lots:
        """Which requests the matcher's lot fell on.

        Raises MatcherUnreachable before it falls, UsageError where the matcher pays us nothing.
        """
        return await self._ask(Lots, "POST", "/v1/audits/lots", body=signed)

    async def hand_in(self, signed: SignedFinding) -> None:
        """Hand in what was found in a drawn request, once or again.

        Raises UsageError for a late finding, or one in another request.
        """
        await self._ask(dict[str, Any], "POST", "/v1/audits/findings", body=signed)

    async def _list(self, path: str, name: str) -> list[dict[str, Any]]:
        return (await self._ask(dict[str, list[dict[str, Any]]], "GET", path)).get(name, [])

    async def _ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: Any = None,
    ) -> T:
        more: dict[str, Any] = {"headers": origin.headers(), "within_s": self._timeout_s}
        if body is not None:
            more = {
                "content": msgspec.json.encode(body),
                "headers": {"content-type": "application/json", **more["headers"]},
                "within_s": CHAIN_TIMEOUT_S,
            }
        try:
            status, content = await http_client.ask(
                self._client, method, path, params=params, **more
            )
        except http_client.NoAnswer as error:
            raise MatcherUnreachable(
                f"no answer from the matcher at {self._base_url}", str(error)
            ) from None
        if not 200 <= status < 300:
            raise _refusal(content, status)
        try:
            refuse_deep(content)
            return msgspec.json.decode(content, type=kind)
        except ValueError as error:  # msgspec's and Unicode's are ValueErrors
            raise MatcherUnreachable(
                f"{self._base_url} does not answer like a matcher", f"{path}: {error}"
            ) from None


def _refusal(content: bytes, status: int) -> HeadraceError:
    """The error in `{"error": …}`; of anything else, such as a proxy's page, its status."""
    try:
        failure = _table(_table(read_json(content)).get("error"))
    except ValueError:
        failure = {}
    said = {"what": "the matcher refused", "why": f"HTTP {status}"}
    said |= {name: value for name, value in failure.items() if value}
    return error_from(said, MatcherUnreachable if status >= 500 else UsageError)


def _table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}
