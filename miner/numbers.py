"""What does a miner count and measure, under which metric names?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from core.runtime.metrics import Metrics


class MinerMetrics:
    """The miner's metrics; `update` copies what other parts count for themselves."""

    def __init__(self) -> None:
        metrics = self.metrics = Metrics()
        self._step = metrics.histogram(
            "headrace_stage_seconds", "Time of one compute step", ["kind"]
        )
        self._requests = metrics.counter(
            "headrace_requests_total", "Requests by how they ended", ["outcome"]
        )
        self._tokens = metrics.counter(
            "headrace_tokens_total", "Tokens of finished requests", ["direction"]
        )
        self._refused = metrics.counter(
            "headrace_refused_total", "What peers said in vain, by reason", ["reason"]
        )
        self._streams = metrics.counter(
            "headrace_stream_faults_total", "Faulty frames and streams, by reason", ["reason"]
        )
        self._active = metrics.gauge("headrace_inflight_requests", "Requests that run or wait here")
        self._free = metrics.gauge("headrace_free_requests", "Request slots nobody has reserved")
        self._kv = metrics.gauge("headrace_kv_tokens", "Positions held in memory")
        self._tau = metrics.gauge("headrace_tau_seconds", "One decode step of one layer")
        self._chain = metrics.gauge("headrace_chain_up", "1 when the chain answered last")
        self._links = metrics.gauge(
            "headrace_link_seconds", "One-way latency to the nearest and farthest peer", ["which"]
        )
        self._seen: dict[str, Counter[str]] = {}

    def step(self, seconds: float, rows: int) -> None:
        """One step of the compute thread."""
        self._step.labels("decode" if rows == 1 else "prompt").observe(seconds)

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
        kv_tokens: int,
        tau_ms: float,
        chain_up: bool,
        rho_ms: Mapping[str, float],
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
        self._kv.set(kv_tokens)
        self._tau.set(tau_ms / 1000)
        self._chain.set(1 if chain_up else 0)
        if rho_ms:
            self._links.labels("nearest").set(min(rho_ms.values()) / 1000)
            self._links.labels("farthest").set(max(rho_ms.values()) / 1000)

    def _grow(self, name: str, counter: object, totals: Mapping[str, int]) -> None:
        seen = self._seen.setdefault(name, Counter())
        for label, total in totals.items():
            if total > seen[label]:
                counter.labels(label).inc(total - seen[label])  # type: ignore[attr-defined]
                seen[label] = total
