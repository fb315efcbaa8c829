"""What does a miner count and measure, under which metric names?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from core.runtime.metrics import Metrics

_ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class EngineMetrics:
    """What the compute thread has come to so far."""

    busy_s: float = 0.0
    idle_s: float = 0.0  # while requests were open here: bubbles
    steps: int = 0
    rows: int = 0
    waiting_requests: int = 0  # for memory
    kv_tokens: int = 0
    kv_free_tokens: int = 0  # promised to no request
    kv_capacity_tokens: int = 0
    tau_ms_by_rows: Mapping[int, float] = field(default_factory=dict)
    microbatches: int = 0  # that this first stage keeps under way, in the ring with most
    microbatch_rows: int = 0
    ring_latency_s: float = 0.0
    kv_bytes: Mapping[str, int] = field(default_factory=dict)  # held, by place
    swapped_bytes: int = 0  # copied between those places
    swap_waited_s: float = 0.0  # by steps, for such copies
    prefix_tokens: int = 0  # positions of prompts that were remembered instead of computed

    @property
    def bubble_share(self) -> float:
        """Of the time in which requests were open here, how much the thread had nothing to run."""
        return self.idle_s / (self.busy_s + self.idle_s) if self.busy_s else 0.0


class StepDone(Protocol):
    """What running a batch came to."""

    @property
    def seconds(self) -> float: ...

    @property
    def rows(self) -> int: ...


class MinerMetrics:
    """The miner's metrics; `update` copies what other parts count for themselves."""

    def __init__(self) -> None:
        metrics = self.registry = Metrics()
        count, gauge = metrics.counter, metrics.gauge
        self._step = metrics.histogram(
            "headrace_stage_seconds", "Time of one compute step", ["kind"]
        )
        self._requests = count("headrace_requests_total", "Requests by how they ended", ["outcome"])
        self._tokens = count("headrace_tokens_total", "Tokens of finished requests", ["direction"])
        self._refused = count(
            "headrace_refused_total", "What peers said in vain, by reason", ["reason"]
        )
        self._streams = count(
            "headrace_stream_faults_total", "Faulty frames and streams, by reason", ["reason"]
        )
        self._active = gauge("headrace_inflight_requests", "Requests that run or wait here")
        self._free = gauge("headrace_free_requests", "Request slots nobody has reserved")
        self._rows = metrics.histogram(
            "headrace_batch_rows", "Rows of one compute step", buckets=_ROW_BUCKETS
        )
        self._spent = count(
            "headrace_compute_seconds_total",
            "Time of the compute thread while requests were open: busy, or waiting for others",
            ["state"],
        )
        self._bubbles = gauge(
            "headrace_bubble_ratio", "Share of that time spent waiting, since the last look"
        )
        self._kv = gauge("headrace_kv_tokens", "Positions by what becomes of them", ["state"])
        self._waiting = gauge("headrace_waiting_requests", "Requests that wait for memory here")
        self._microbatches = gauge(
            "headrace_microbatches", "Microbatches that a first stage keeps under way"
        )
        self._microbatch_rows = gauge("headrace_microbatch_rows", "Rows of each")
        self._ring = gauge(
            "headrace_ring_latency_seconds", "Time round the ring that no stage computes"
        )
        self._tau = gauge(
            "headrace_tau_seconds", "A decode step of one layer, by rows of the step", ["rows"]
        )
        self._chain = gauge("headrace_chain_up", "1 when the chain answered last")
        self._links = gauge(
            "headrace_link_seconds", "One-way latency to the nearest and farthest peer", ["which"]
        )
        self._kv_bytes = gauge(
            "headrace_kv_bytes", "Memory of keys and values that is held, by place", ["place"]
        )
        self._swapped = count(
            "headrace_kv_swapped_bytes_total", "Keys and values copied between the places"
        )
        self._swap_waits = count(
            "headrace_kv_swap_wait_seconds_total", "Time that steps have waited for such copies"
        )
        self._prefixes = count(
            "headrace_prefix_tokens_total",
            "Prompt positions that were not computed, because an earlier prompt began the same",
        )
        self._queue = gauge(
            "headrace_queue_length",
            "Requests that wait here: for a slot, or for memory",
            ["reason"],
        )
        self._layers = gauge("headrace_layers", "Layers that are held and served")
        self._peers = gauge("headrace_peers", "Other machines that answered last")
        self._stake = gauge("headrace_stake_units", "The owner's stake, in base units")
        self._least = gauge(
            "headrace_stake_least_units", "The least stake that may work, in base units"
        )
        self._unpaid = gauge(
            "headrace_unpaid_units", "Work of open orders that nobody acknowledged, in base units"
        )
        self._gas = gauge("headrace_balance_wei", "ETH for fees", ["account"])
        self._disputes = gauge("headrace_disputes", "Disputes by state", ["state"])
        for outcome in ("finished", "failed"):
            self._requests.labels(outcome)
        for direction in ("in", "out"):
            self._tokens.labels(direction)
        for kind in ("prompt", "decode"):
            self._step.labels(kind)
        self._seen: dict[str, Counter[str]] = {}
        self._engine = EngineMetrics()

    def step(self, done: StepDone, prompts: int) -> None:
        """One step of the compute thread, in which `prompts` requests ran part of a prompt."""
        self._step.labels("prompt" if prompts else "decode").observe(done.seconds)
        self._rows.observe(done.rows)

    def update(
        self,
        *,
        counts: Mapping[str, int],
        streams: Mapping[str, int],
        finished: int,
        tokens_in: int,
        tokens_out: int,
        active: int,
        free: int,
        engine: EngineMetrics,
        chain_up: bool,
        rho_ms: Mapping[str, float],
        queued: int = 0,
        layers: int = 0,
        unpaid_units: int = 0,
    ) -> None:
        """Bring every number up to date. Counters given here only grow."""
        failed = sum(n for what, n in counts.items() if what.startswith("request_failed_"))
        self._grow("requests", self._requests, {"finished": finished, "failed": failed})
        self._grow("tokens", self._tokens, {"in": tokens_in, "out": tokens_out})
        other = {what: n for what, n in counts.items() if not what.startswith("request_failed_")}
        self._grow("refused", self._refused, other)
        self._grow("streams", self._streams, streams)
        self._active.set(active)
        self._free.set(free)
        self._update_engine(engine)
        self._chain.set(1 if chain_up else 0)
        self._queue.labels("slot").set(queued)
        self._queue.labels("memory").set(engine.waiting_requests)
        self._layers.set(layers)
        self._peers.set(len(rho_ms))
        self._unpaid.set(unpaid_units)
        if rho_ms:
            self._links.labels("nearest").set(min(rho_ms.values()) / 1000)
            self._links.labels("farthest").set(max(rho_ms.values()) / 1000)

    def standing(self, stake_units: int, least_units: int, gas_wei: int, disputes: int) -> None:
        """What the chain says of this miner."""
        self._stake.set(stake_units)
        self._least.set(least_units)
        self._gas.labels("operator").set(gas_wei)
        self._disputes.labels("open").set(disputes)

    def _update_engine(self, engine: EngineMetrics) -> None:
        before, self._engine = self._engine, engine
        busy_s, idle_s = engine.busy_s - before.busy_s, engine.idle_s - before.idle_s
        for state, seconds in (("busy", busy_s), ("waiting", idle_s)):
            self._spent.labels(state).inc(max(0.0, seconds))
        if busy_s + idle_s > 0:
            self._bubbles.set(idle_s / (busy_s + idle_s))
        self._kv.labels("held").set(engine.kv_tokens)
        self._kv.labels("promised").set(engine.kv_capacity_tokens - engine.kv_free_tokens)
        self._kv.labels("capacity").set(engine.kv_capacity_tokens)
        self._waiting.set(engine.waiting_requests)
        self._microbatches.set(engine.microbatches)
        self._microbatch_rows.set(engine.microbatch_rows)
        self._ring.set(engine.ring_latency_s)
        for place, held in engine.kv_bytes.items():
            self._kv_bytes.labels(place).set(held)
        self._swapped.inc(max(0, engine.swapped_bytes - before.swapped_bytes))
        self._swap_waits.inc(max(0.0, engine.swap_waited_s - before.swap_waited_s))
        self._prefixes.inc(max(0, engine.prefix_tokens - before.prefix_tokens))
        for rows, ms in engine.tau_ms_by_rows.items():
            self._tau.labels(str(rows)).set(ms / 1000)

    def _grow(self, name: str, counter: object, totals: Mapping[str, int]) -> None:
        seen = self._seen.setdefault(name, Counter())
        for label, total in totals.items():
            if total > seen[label]:
                counter.labels(label).inc(total - seen[label])  # type: ignore[attr-defined]
                seen[label] = total
