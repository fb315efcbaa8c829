"""Who is told before money runs out, and how is it known that it was us?

Watchers say what is wrong now. What is new is posted to the webhook as firing, what is over as
resolved, each with the same `id`; nothing is said twice while it lasts. A body is signed with
HMAC-SHA256 under a shared secret together with the time, and posted again and again, ever more
slowly, until the receiver takes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core.keys.passwords import read_secret_file
from core.protocol.errors import ConfigError
from core.runtime.logs import get_logger
from core.runtime.retry import Backoff, retry

if TYPE_CHECKING:
    import httpx2

    from core.runtime.clock import Clock
    from core.runtime.metrics import Metrics
    from core.runtime.settings import Settings

SCHEMA: Final = "headrace.alert/v1"
SIGNATURE: Final = "X-Headrace-Signature"
TIMEOUT_S: Final = 10.0
MAX_WAITING: Final = 256
BACKOFF: Final = Backoff(attempts=12, timeout_s=3600.0, initial_s=1.0, max_s=300.0, jitter_s=1.0)
_LATER: Final = frozenset({408, 425, 429})
log = get_logger(__name__)


@dataclass(frozen=True)
class Trouble:
    """One thing that is wrong. `subject` tells it from others of its kind; `values` name units."""

    what: str
    why: str
    fix: str
    subject: str = ""
    values: dict[str, str | int | float] = field(default_factory=dict)


class _NotTaken(Exception):
    """The receiver did not take it; it may later."""


def sign(secret: bytes, body: bytes, time_s: int) -> str:
    """The value of the signature header: `t=TIME,v1=HEX` over `TIME.BODY`."""
    digest = hmac.new(secret, b"%d." % time_s + body, hashlib.sha256).hexdigest()
    return f"t={time_s},v1={digest}"


class Alerts:
    """What is wrong at one daemon, and the webhook that is told."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        *,
        events: Sequence[str],
        webhook: str = "",
        secret: bytes = b"",
        about: dict[str, str] | None = None,
        backoff: Backoff = BACKOFF,
    ) -> None:
        """`events` are the kinds that this daemon watches; `about` goes with every alert."""
        self._clock, self._webhook, self._secret = clock, webhook, secret
        self._about, self._backoff = dict(about or {}), backoff
        self._firing: dict[str, dict[str, tuple[str, Trouble]]] = {event: {} for event in events}
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_WAITING)
        self._sender: asyncio.Task[None] | None = None
        self._gauge = metrics.gauge("headrace_alerts", "What is wrong now, by kind.", ["event"])
        help_text = "Alerts that were posted, by how it ended."
        self._sent = metrics.counter("headrace_webhooks_total", help_text, ["outcome"])
        for event in events:
            self._gauge.labels(event).set(0)
        for outcome in ("delivered", "refused", "given_up", "dropped"):
            self._sent.labels(outcome)

    @classmethod
    def of(
        cls,
        settings: Settings,
        metrics: Metrics,
        clock: Clock,
        *,
        daemon: str,
        account: str,
        events: Sequence[str],
    ) -> Alerts:
        """As `[alerts]` says. Raises as `secret_of`."""
        return cls(
            metrics,
            clock,
            events=events,
            webhook=settings.alerts.webhook,
            secret=secret_of(settings.alerts.webhook, settings.alerts.secret_file),
            about={"daemon": daemon, "network": settings.network.name, "account": account},
        )

    def tell(self, event: str, troubles: Sequence[Trouble]) -> None:
        """All that is wrong of one kind, as it is now; nothing when all is well."""
        before = self._firing[event]
        now = {trouble.subject: trouble for trouble in troubles}
        after: dict[str, tuple[str, Trouble]] = {}
        for subject, trouble in now.items():
            if subject in before:
                after[subject] = (before[subject][0], trouble)
                continue
            after[subject] = (f"alert_{secrets.token_hex(8)}", trouble)
            log.warning(trouble.what, event_kind=event, why=trouble.why, fix=trouble.fix)
            self._post(event, "firing", *after[subject])
        for subject, (alert_id, trouble) in before.items():
            if subject not in now:
                log.info("no longer: " + trouble.what, event_kind=event)
                self._post(event, "resolved", alert_id, trouble)
        self._firing[event] = after
        self._gauge.labels(event).set(len(after))

    async def flush(self, within_s: float) -> None:
        """Wait until everything was posted or given up, for at most `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                await self._waiting.join()
        except TimeoutError:
            log.warning("alerts are not delivered", count=self._waiting.qsize())

    async def close(self, within_s: float = 2.0) -> None:
        """Post what is left, for a moment, and stop."""
        if self._sender is not None:
            await self.flush(within_s)
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
            self._sender = None

    def _post(self, event: str, state: str, alert_id: str, trouble: Trouble) -> None:
        if not self._webhook:
            return
        body = {
            "schema": SCHEMA,
            "id": alert_id,
            "event": event,
            "state": state,
            "at": int(self._clock.now()),
            **self._about,
            "subject": trouble.subject,
            "what": trouble.what,
            "why": trouble.why,
            "fix": trouble.fix,
            "values": trouble.values,
        }
        try:
            self._waiting.put_nowait(body)
        except asyncio.QueueFull:
            self._sent.labels("dropped").inc()
            log.error("an alert is dropped", why=f"{MAX_WAITING} wait already", event_kind=event)
            return
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_all(), name="alerts")

    async def _send_all(self) -> None:
        import httpx2

        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as client:
            while True:
                body = await self._waiting.get()
                try:
                    await self._send(client, json.dumps(body, ensure_ascii=False).encode())
                finally:
                    self._waiting.task_done()

    async def _send(self, client: httpx2.AsyncClient, body: bytes) -> None:
        async def post() -> int:
            import httpx2

            header = sign(self._secret, body, int(self._clock.now()))  # anew: it must be fresh
            try:
                async with client.stream(  # its body is not read
                    "POST",
                    self._webhook,
                    content=body,
                    headers={"content-type": "application/json", SIGNATURE: header},
                ) as answer:
                    status_code = int(answer.status_code)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise _NotTaken(str(error) or type(error).__name__) from None
            if status_code >= 500 or status_code in _LATER:
                raise _NotTaken(f"HTTP {status_code}")
            return status_code

        try:
            status = await retry(post, on=_NotTaken, backoff=self._backoff)
        except _NotTaken as error:
            self._sent.labels("given_up").inc()
            log.error("an alert is not taken", why=str(error))
            return
        if 200 <= status < 300:
            self._sent.labels("delivered").inc()
        else:
            self._sent.labels("refused").inc()
            log.error("the receiver refuses an alert", why=f"HTTP {status}")


def secret_of(webhook: str, file: Path | None) -> bytes:
    """What alerts are signed with. Raises ConfigError if a webhook has none, SecretFileTooOpen."""
    if not webhook:
        return b""
    if file is None:
        raise ConfigError(
            "alerts cannot be sent",
            why="alerts.webhook is set without alerts.secret_file: others could send the like",
            next_step="write a random secret into a file that only you may read, and set "
            "alerts.secret_file to it",
        )
    secret = read_secret_file(file).strip().encode()
    if len(secret) < 16:
        raise ConfigError(f"the secret in {file} is too short", why="it has less than 16 bytes")
    return secret
