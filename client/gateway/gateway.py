"""What is one running gateway? All that its API and its pages work with, made once at start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from client.context import Context
    from client.gateway.balance_watch import BalanceWatch
    from client.gateway.batches.batches import Batches
    from client.gateway.batches.files import Files
    from client.gateway.bodies import Bodies
    from client.gateway.exchange import Exchanges
    from client.gateway.logins import Logins
    from client.gateway.metrics import GatewayMetrics
    from client.gateway.money.keyring import Keyring
    from client.gateway.money.ledger import Ledger
    from client.gateway.money.limits import Limiter
    from client.gateway.money.prices import ModelPrices
    from client.gateway.openai.models import Catalogue
    from client.gateway.records.database import Database
    from client.gateway.stored_responses import StoredResponses
    from client.gateway.workers import Workers
    from client.orders.matchers import Matchers
    from client.records.store import ClientStore
    from client.sessions.answering import Answerer
    from core.protocol.signing import DigestSigner
    from core.runtime.alerts import Alerts
    from core.runtime.clock import Clock
    from core.runtime.settings import Settings


@dataclass
class Gateway:
    """One gateway: settings and chain, who answers, what is on offer, keys, money and records.

    Calls of `keys`, `ledger`, `responses`, `files` and `batches` that touch the database are
    coroutines.
    """

    settings: Settings
    clock: Clock
    #: The chain, the requester's wallet and its records; None only where a test has no chain.
    context: Context | None
    answerer: Answerer
    prices: ModelPrices
    matcher: Matchers | None
    #: The requester's own records: jobs, prompts, answers, stage receipts.
    store: ClientStore | None
    #: Models on offer, their tokenizers and prices.
    catalogue: Catalogue
    database: Database
    keys: Keyring
    logins: Logins
    ledger: Ledger
    responses: StoredResponses
    limiter: Limiter
    bodies: Bodies
    workers: Workers
    exchanges: Exchanges
    files: Files
    batches: Batches
    balance_watch: BalanceWatch
    alerts: Alerts
    metrics: GatewayMetrics
    #: The API key of this process, for what its owner does from pages; nobody is told it.
    local_token: str
    #: Names it in the database that it may share with others, over restarts (see `identity`).
    gateway_id: str
    #: The address that pays.
    payer: str
    folder: Path
    url: str = ""
    started_at: float = field(default=0.0)
    #: The payer's key, for checks that stages answer only to it; None where there is none.
    signer: DigestSigner | None = field(default=None, repr=False)

    def show(self, units: int) -> str:
        """Base units as people read them: `0.001234usd`."""
        return self.settings.show_token(units)
