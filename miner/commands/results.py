"""What do the miner's commands print with --json?

They construct one of these types each. Amounts are texts with a unit, rates are per second.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class OwnerResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What one command answers."""


class SentTransaction(OwnerResult, frozen=True):
    """A transaction that was mined."""

    tx: str
    block: int


class Stake(OwnerResult, frozen=True):
    """`stake status`: what the registry has; null where nothing leaves, or without jail."""

    owner: str
    operator: str
    state: str
    stake: str
    minimum: str
    leaving: str
    ready_in_s: int | None = msgspec.field(name="readyInS")
    jailed_for_s: int | None = msgspec.field(name="jailedForS")
    strikes: int
    open_disputes: int
    credit: str


class StakeChanged(SentTransaction, frozen=True):
    """`stake add`, `withdraw --cancel` and `unjail`: the transaction, and the stake after it."""

    owner: str
    operator: str
    state: str
    stake: str
    minimum: str
    leaving: str
    ready_in_s: int | None = msgspec.field(name="readyInS")
    jailed_for_s: int | None = msgspec.field(name="jailedForS")
    strikes: int
    open_disputes: int
    credit: str


class Registered(SentTransaction, frozen=True):
    """`register`."""

    owner: str
    operator: str
    operator_wallet: str
    stake: str
    next: str


class Leaving(SentTransaction, frozen=True):
    """`withdraw` the first time: how much leaves, and when it can be taken."""

    leaving: str
    ready_in_s: int = msgspec.field(name="readyInS")
    ready_at: str
    next: str


class WithdrawnStake(SentTransaction, frozen=True):
    """`withdraw` the second time, `withdraw --credits` and `claim`: what came to which wallet."""

    withdrawn: str
    to: str


class Rotated(SentTransaction, frozen=True):
    """`operator rotate`."""

    operator: str
    operator_wallet: str


class LeftNetwork(OwnerResult, frozen=True):
    """`drain` and `stop`."""

    state: Literal["LEFT"]
    operator: str


class Updated(OwnerResult, frozen=True):
    """`update`: what was written, and whether a daemon still runs with what was before."""

    changed: dict[str, Any]
    file: str
    restart_needed: bool
    next: str


class ListedRow(OwnerResult, frozen=True):
    """A machine on the chain, by its number among its owner's."""

    number: int
    kind: str = msgspec.field(name="class")
    memory_bytes: int


class MachineUpdated(OwnerResult, frozen=True):
    """`update` without terms: what the chain says of this machine now; nothing changed where there
    is no transaction. `changed` has what it said before and what it says now. `miner` says what
    becomes of one that runs.
    """

    owner: str
    machine: ListedRow
    changed: dict[str, list[str]]
    transactions: list[str]
    others: list[ListedRow]
    miner: str
    next: str


class MachineRetired(SentTransaction, frozen=True):
    """`retire`: the machine that the chain lists no longer, and those that it still lists."""

    owner: str
    machine: ListedRow
    others: list[ListedRow]
    miner: str
    next: str


class Initialised(OwnerResult, frozen=True):
    """`init`."""

    file: str
    wallet: str
    operator_wallet: str
    model: str
    price_in: str
    price_out: str
    memory_limit: str
    benchmarked: bool
    next: str


class PeerDistance(OwnerResult, frozen=True):
    """Round trip to a machine's data port and its rate; null where it does not answer."""

    miner: str
    endpoint: str
    round_trip_ms: float | None
    sends_mbit_s: float | None = None


class Bench(OwnerResult, frozen=True):
    """`bench`: this machine by the engine's own steps; τ is ms per layer of a decode step.

    Steps and `tflops` are in the model's numerics.
    """

    model: str
    layers: str
    model_layers: int
    numerics: str
    weights_bytes: int
    memory_limit_bytes: int
    kv_tokens: int
    tflops: float
    bandwidth_gb_s: float = msgspec.field(name="bandwidthGbS")
    tau_ms_per_layer: float
    tau_ms_by_rows: dict[str, float]
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    batch_rows: int
    batch_tokens_per_s: float
    kernels: str
    peers: list[PeerDistance]
    #: As `matcher plan --nodes` takes it.
    machine: dict[str, Any]
    measured_at: int
    saved: str | None


class Market(OwnerResult, frozen=True):
    """What others ask for the same model now, through the whole of it."""

    machines: int
    lowest_out: str | None
    highest_out: str | None
    fee_bps: int


class Profit(OwnerResult, frozen=True):
    """`quote`: M > C/P. Rates are tokens of the model that pass through this machine."""

    cost_per_hour: str
    price_in: str
    price_out: str
    share: str
    break_even_tokens_per_s: float | None
    measured_tokens_per_s: float | None
    utilisation: float
    profit_per_day: str | None
    pays: bool | None
    market: Market | None
    notes: list[str]


class PaperRow(OwnerResult, frozen=True):
    """`quote --paper`: a row of DeServe's table."""

    cost_per_hour: str
    price_out: str
    break_even_tokens_per_s: float
    printed_in_paper: int


class Reason(OwnerResult, frozen=True):
    """`why`: one reason, the gravest first."""

    rank: int
    topic: str
    weight: Literal["blocks", "costs", "fine", "unknown"]
    fact: str
    next: str


class Check(OwnerResult, frozen=True):
    """`doctor`: one thing that was looked at."""

    check: str
    state: Literal["ok", "warning", "broken"]
    found: str
    next: str


class EarnedRow(OwnerResult, frozen=True):
    """`earnings`: a job, a day or a model, and what became of its pay."""

    key: str
    jobs: int
    settled: int
    delivered: int
    disputed: int
    running: int
    ended: int
    paid: str
    pending: str


class Earnings(OwnerResult, frozen=True):
    """`earnings`: the rows, and what the chain says in all."""

    owner: str
    operator: str
    since: str | None
    by: Literal["job", "day", "model"]
    rows: list[EarnedRow]
    paid: str
    collected: str
    pending: str
    disputed: str
    slashed: str
    to_claim: str


class AccusationRow(OwnerResult, frozen=True):
    """`disputes ls`: an accusation against this miner."""

    dispute: str
    arbiter: str
    job: str
    stage: int
    accuser: str
    state: str
    verdict: str
    bond: str
    at_risk: str


class Money(OwnerResult, frozen=True):
    """What of a daemon's owner is at stake, owed and paid."""

    stake: str
    least_stake: str
    open_disputes: int
    jailed_until: int | None
    owed: str
    to_claim: str
    gas: str


class MinerStatus(OwnerResult, frozen=True, forbid_unknown_fields=False):
    """`status` and `top`: what the running daemon says of itself. A later version may say more."""

    state: str
    name: str | None
    operator: str
    owner: str
    endpoint: str
    swarm: list[str]
    model: str
    model_id: str
    layers: str | None
    model_layers: int
    allocation: int
    matcher: str | None
    problem: str | None
    tau_ms_per_layer: float
    rho_ms: dict[str, float]
    link_mb_s: dict[str, float]
    active_requests: int
    free_requests: int
    max_requests: int
    open_jobs: int
    finished_requests: int
    tokens_in: int
    tokens_out: int
    money: Money | None
    kv_tokens: int
    kv_capacity_tokens: int
    kv_free_tokens: int
    waiting_requests: int
    tau_ms_by_rows: dict[str, float]
    microbatches: int
    microbatch_rows: int
    ring_latency_ms: float
    bubble_share: float
    step_rows: float
    same_bits: bool | None
    chain_reachable: bool
    chain_time: int
    announcement_failures: int
    counts: dict[str, int]
    stream_faults: dict[str, int]
    pid: int
