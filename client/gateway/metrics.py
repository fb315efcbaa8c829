"""What does the gateway count for Prometheus? Models are few; no other free text is a label."""

from __future__ import annotations

from core.runtime.metrics import Metrics

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
#: How requests end; refused ones are counted by their error, without a model.
OUTCOMES = ("done", "failed", "cancelled")
#: Why an answer went on elsewhere, and what a check of one says.
REROUTED = ("lost", "distrusted", "other")
CHECKED = {True: "match", False: "mismatch", None: "unknown"}


class GatewayMetrics:
    """The gateway's metrics."""

    def __init__(self) -> None:
        metrics = self.registry = Metrics()
        self.requests = metrics.counter(
            "headrace_requests_total", "Requests by how they ended.", ["model", "outcome"]
        )
        self.tokens = metrics.counter(
            "headrace_tokens_total", "Tokens that were paid for.", ["model", "direction"]
        )
        self.first_token = metrics.histogram(
            "headrace_time_to_first_token_seconds", "From a request's arrival to its first token."
        )
        self.inter_token = metrics.histogram(
            "headrace_inter_token_seconds", "Between two tokens of an answer.", buckets=_FAST
        )
        self.request = metrics.histogram(
            "headrace_request_seconds", "From a request's arrival to its end.", buckets=_SLOW
        )
        self.inflight = metrics.gauge("headrace_inflight_requests", "Requests on their way.")
        self.cost = metrics.counter(
            "headrace_cost_units_total", "What was paid, in base units of the token.", ["model"]
        )
        self.balance = metrics.gauge(
            "headrace_balance_units", "What the payer holds, in base units.", ["account"]
        )
        self._met: set[str] = set()
        self.lasts = metrics.gauge(
            "headrace_funds_left_seconds", "How long the money lasts at the rate of the last hour."
        )
        self.lasts.set(float("inf"))
        self.locked = metrics.gauge(
            "headrace_locked_units", "Reserved for requests on their way, in base units."
        )
        self.reroutes = metrics.counter(
            "headrace_reroutes_total", "Answers that went on in another pipeline.", ["reason"]
        )
        self.audits = metrics.counter(
            "headrace_audit_checks_total", "Answers that were checked.", ["result"]
        )
        self.batches = metrics.gauge("headrace_batches", "Batches by status.", ["status"])
        for reason in REROUTED:
            self.reroutes.labels(reason)
        for result in CHECKED.values():
            self.audits.labels(result)

    def rerouted(self, reason: str) -> None:
        """Count an answer that went on in another pipeline: `lost`, `distrusted` or `other`."""
        self.reroutes.labels(reason).inc()

    def paid(self, model: str, tokens_in: int, tokens_out: int, cost_units: int) -> None:
        """Count what answers of a model came to."""
        self.tokens.labels(model, "in").inc(tokens_in)
        self.tokens.labels(model, "out").inc(tokens_out)
        self.cost.labels(model).inc(cost_units)

    def meet(self, model: str) -> None:
        """Count a model's outcomes from zero, so that the first failure is seen as one more."""
        if model not in self._met:
            self._met.add(model)
            for outcome in OUTCOMES:
                self.requests.labels(model, outcome)
