"""What do the client's commands print with --json?

One type per command; the schemas that are published are made from them. Amounts are texts with a unit.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.runtime.commands.results import Result


class WalletFile(Result, frozen=True):
    """`wallet new`, `wallet import` and `wallet ls`. The address is null where the file does not say it."""

    name: str
    address: str | None
    file: str


class Balance(Result, frozen=True):
    """`balance` and `wallet show`."""

    address: str
    wallet: str
    prepaid: str
    locked: str
    locked_by: list[str]
    spendable: str
    lasts: str
    leaving: str
    credit: str
    gas: str


class Deposited(Result, frozen=True):
    """`wallet deposit`."""

    deposited: str
    prepaid: str


class Thawing(Result, frozen=True):
    """`wallet withdraw AMOUNT`."""

    leaving: str
    ready_in_s: int
    next: str


class Withdrawn(Result, frozen=True):
    """`wallet withdraw`, once the delay is over."""

    withdrawn: str


class Allowed(Result, frozen=True):
    """`wallet allow`."""

    account: str
    spender: str
    limit: str
    used: str
    expires_at: int
    tx: str
    next: str


class Offer(Result, frozen=True):
    """`quote`."""

    model: str
    requests: str
    tokens: str
    price: str
    cost: str
    route: str
    replicas: str | msgspec.UnsetType = msgspec.UNSET
    other_routes: str | msgspec.UnsetType = msgspec.UNSET
    audited: str | msgspec.UnsetType = msgspec.UNSET
    auditor: str | msgspec.UnsetType = msgspec.UNSET


class Submitted(Result, frozen=True):
    """`submit` and `jobs retry-failed`. The last four are of several replicas."""

    jobs: list[str]
    job_ids: list[str]
    name: str
    finished: int
    failed: int
    tokens: int
    tokens_per_s: float
    paid: str
    still_locked: str
    spent: str
    prepaid: str
    results: str
    replicas: int | msgspec.UnsetType = msgspec.UNSET
    same: int | msgspec.UnsetType = msgspec.UNSET
    different: int | msgspec.UnsetType = msgspec.UNSET
    differences: str | msgspec.UnsetType | None = msgspec.UNSET


class Detached(Result, frozen=True):
    """`submit --detach`: who goes on with it, and how to follow."""

    jobs: list[str]
    job_ids: list[str]
    pid: int
    log: str
    next: str


class Answer(Result, frozen=True):
    """`chat`."""

    answer: str
    tokens: int
    tokens_per_s: float
    paid: str
    job: str
    logprobs: list[Any] | msgspec.UnsetType | None = msgspec.UNSET


class JobLine(Result, frozen=True):
    """`jobs ls`. `running`: a program on this machine sees to it."""

    job: str
    name: str
    state: str
    running: bool
    requests: int
    finished: int
    tokens: int
    stages: int


class Job(JobLine, frozen=True):
    """`jobs show`."""

    id: str
    on_chain: str
    locked: str
    tokens_in: int
    tokens_out: int
    plan: list[str]
    transaction: str


class LogLine(Result, frozen=True):
    """`jobs logs`: a request here, or an event on chain."""

    what: str
    name: str
    state: str
    tokens_in: int | None
    tokens_out: int | None
    block: int | None
    transaction: str | None


class Ended(Result, frozen=True):
    """`jobs wait` and `jobs cancel`."""

    job: str
    on_chain: str
    paid: str
    refunded: str
    tx: str | msgspec.UnsetType = msgspec.UNSET


class Fetched(Result, frozen=True):
    """`jobs fetch`."""

    job: str
    answers: int
    missing: list[str]
    results: str
    receipts: str


class ReceiptLine(Result, frozen=True):
    """`receipts ls`."""

    receipt: str
    job: str
    stage: int
    covers: str
    tokens_in: int
    tokens_out: int


class Receipt(Result, frozen=True):
    """`receipts show`."""

    receipt: str
    job: str
    stage: int
    operator: str
    layers: str
    requests: int
    tokens_in: int
    tokens_out: int
    input_root: str
    output_root: str
    shard_root: str
    signed_at: int
    signature: str


class JobVerified(Result, frozen=True):
    """`receipts verify JOB`."""

    job: str
    signatures: str
    commitments: str
    tokens: str
    price: str
    on_chain: str


class FileVerified(Result, frozen=True):
    """`receipts verify FILE`."""

    file: str
    receipts: int
    distinct: int
    jobs: list[str]
    signatures: str


class Delegated(Result, frozen=True):
    """`receipts delegate`: what `auditor --delegation` takes."""

    job: str
    delegation: dict[str, Any]
    signature: str


class Serving(Result, frozen=True):
    """`serve`, once it answers."""

    url: str
    base_url: str
    payer: str
    pages: str | msgspec.UnsetType = msgspec.UNSET


class Key(Result, frozen=True):
    """`keys ls` and `keys revoke`."""

    id: str
    name: str
    hint: str
    state: str
    budget: str | None
    spent: str
    today: str
    reserved: str
    expires: str | None
    models: str
    rate: str | None
    token_rate: str | None
    last_used: str | None
    created: str | None


class NewKey(Key, frozen=True):
    """`keys new`: the only time that the key itself is shown."""

    key: str


class ModelOffer(Result, frozen=True, rename="camel"):
    """`models`."""

    model: str
    id: str | None
    layers: int | None
    context: int | None
    serving: int | None
    copies: int | None
    covered: bool | None
    price_in: str | None
    price_out: str | None
    ms_per_token: float | None


class MinerOffer(Result, frozen=True, rename="camel"):
    """`miners ls`."""

    miner: str | None
    model: str
    operator: str | None
    state: str | None
    stake: str | None
    layers: list[int] | None
    price_in_shown: str | None
    price_out_shown: str | None
    age_ms: int | None


class Miner(Result, frozen=True, forbid_unknown_fields=False, rename="camel"):
    """`miners show`: the matcher's words about a machine, which may grow, and the chain's."""

    operator: str
    model: str
    state: str
    strikes: int
    open_disputes: int
    leaving: str


class Dispute(Result, frozen=True, forbid_unknown_fields=False):
    """`dispute`: where the accusation stands, before a jury or in a game. What is known depends on which."""

    dispute: str
    job: str
    stage: int
    accused: str
    verdict: str
    bond: str


RESULTS: dict[str, tuple[Any, ...]] = {
    "wallet new": (WalletFile,),
    "wallet import": (WalletFile,),
    "wallet ls": (list[WalletFile],),
    "wallet show": (Balance,),
    "wallet deposit": (Deposited,),
    "wallet withdraw": (Thawing, Withdrawn),
    "wallet allow": (Allowed,),
    "balance": (Balance,),
    "quote": (Offer,),
    "submit": (Submitted, Detached),
    "chat": (Answer,),
    "jobs ls": (list[JobLine],),
    "jobs show": (Job,),
    "jobs logs": (list[LogLine],),
    "jobs wait": (Ended,),
    "jobs cancel": (Ended,),
    "jobs fetch": (Fetched,),
    "jobs retry-failed": (Submitted,),
    "receipts ls": (list[ReceiptLine],),
    "receipts show": (Receipt,),
    "receipts verify": (JobVerified, FileVerified),
    "receipts delegate": (Delegated,),
    "serve": (Serving,),
    "keys new": (NewKey,),
    "keys ls": (list[Key],),
    "keys revoke": (Key,),
    "models": (list[ModelOffer],),
    "miners ls": (list[MinerOffer],),
    "miners show": (Miner,),
    "dispute": (Dispute,),
}
