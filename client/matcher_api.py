"""Asking a matcher over HTTP: what is served, at what price, and to open or settle a job."""

from __future__ import annotations

from typing import Any

import msgspec

from client.session import Match
from core.protocol import signing
from core.protocol.errors import CheckFailed, HeadraceError, MatcherUnreachable, NoCapacity
from core.protocol.types import Ack, SignedOrder, Stage


class RemoteError(HeadraceError):
    """The matcher refused, in its own words."""

    def __init__(self, document: dict[str, Any], status: int) -> None:
        super().__init__(
            str(document.get("what", "the matcher refused")),
            str(document.get("why", f"HTTP {status}")),
            str(document.get("state", "")),
            str(document.get("next", "")),
            **dict(document.get("details") or {}),
        )
        self.code = str(document.get("code", "E-NET-02"))  # type: ignore[misc]
        self.http_status = status  # type: ignore[misc]
        self.exit_code = _EXIT_BY_STATUS.get(status, 6)  # type: ignore[misc]


_EXIT_BY_STATUS = {400: 2, 402: 5, 404: 2, 409: 6, 422: 2, 503: 7, 504: 8}


class MatcherApi:
    """One matcher. Every call raises MatcherUnreachable when it does not answer, or RemoteError with its words."""

    def __init__(self, base_url: str, *, timeout_s: float = 30.0) -> None:
        import httpx2

        self._base_url = base_url.rstrip("/")
        self._client = httpx2.AsyncClient(base_url=self._base_url, timeout=timeout_s)

    async def close(self) -> None:
        await self._client.aclose()

    async def status(self) -> dict[str, Any]:
        return await self._request("GET", "/v1/status")

    async def models(self) -> list[dict[str, Any]]:
        return list((await self._request("GET", "/v1/models"))["models"])

    async def miners(self) -> list[dict[str, Any]]:
        return list((await self._request("GET", "/v1/miners"))["miners"])

    async def quote(self, model_id: str, tokens_in: int, tokens_out: int) -> dict[str, Any]:
        """Lowest price at which a whole pipeline would serve this now."""
        params = {"model": model_id, "tokens_in": tokens_in, "tokens_out": tokens_out}
        return await self._request("GET", "/v1/quote", params=params)

    async def job(self, job_id: str) -> dict[str, Any]:
        return await self._request("GET", f"/v1/jobs/{job_id}")

    async def open_job(self, signed: SignedOrder, domain: signing.Domain) -> Match:
        """Have the order matched and opened on chain. Raises CheckFailed if the answer is not about our order."""
        found = await self._request(
            "POST", "/v1/orders", content=msgspec.json.encode(signed), timeout_s=120.0
        )
        match = Match(
            job_id=str(found["jobId"]),
            signed=signed,
            plan=tuple(msgspec.convert(found["plan"], list[Stage])),
            endpoints=tuple(str(e) for e in found["endpoints"]),
            tx_hash=str(found.get("txHash", "")),
        )
        expected = signing.job_id(domain, signed.order)
        if match.job_id != expected or len(match.endpoints) != len(match.plan):
            raise CheckFailed(
                "the matcher answered with another job", f"got {match.job_id}, ours is {expected}"
            )
        return match

    async def acknowledge(self, job_id: str, ack: Ack, signature: str) -> dict[str, Any]:
        """Hand in the acknowledgement; the matcher settles the job on chain."""
        body = msgspec.json.encode({"ack": ack, "signature": signature})
        return await self._request("POST", f"/v1/jobs/{job_id}/ack", content=body, timeout_s=120.0)

    async def _request(
        self, method: str, path: str, *, timeout_s: float | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        import httpx2

        if timeout_s is not None:
            kwargs["timeout"] = timeout_s
        if "content" in kwargs:
            kwargs["headers"] = {"content-type": "application/json"}
        try:
            response = await self._client.request(method, path, **kwargs)
        except httpx2.HTTPError as error:
            raise MatcherUnreachable(
                f"no answer from the matcher at {self._base_url}",
                str(error) or type(error).__name__,
            ) from None
        try:
            document = response.json()
        except ValueError:
            raise MatcherUnreachable(
                f"{self._base_url} does not answer like a matcher", f"HTTP {response.status_code}"
            ) from None
        if response.is_success:
            return dict(document)
        failure = document.get("error", document) if isinstance(document, dict) else {}
        if response.status_code == 503 and failure.get("reason") == "no_route":
            raise NoCapacity(
                str(failure.get("what", "no pipeline")),
                str(failure.get("why", "")),
                str(failure.get("state", "")),
                str(failure.get("next", "")),
            )
        raise RemoteError(dict(failure), response.status_code)
