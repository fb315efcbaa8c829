"""What does a simulation say?"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.simulate.histogram import Latency
from scheduler.simulate.world import SimLink, Worker


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A machine over the counted window; ``kv_peak`` is the largest share of its cache held."""

    machine_id: str
    utilisation: float
    passes: int
    mean_decodes: float
    mean_prefill_tokens: float
    kv_peak: float
    kv_refusals: int


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One directed link over the counted window: how long messages waited for those before them."""

    source_id: str
    target_id: str
    messages: int
    utilisation: float
    mean_wait_s: float
    max_wait_s: float


@dataclass(frozen=True, slots=True)
class SimReport:
    """The counted window of a run; rates are per second of it, latencies of steps that ended in it.

    ``first_token`` runs from a request's arrival at the coordinator to its first token, ``prompt``
    from when it was let in (Helix's prompt latency), ``decode`` from one token to the next.
    ``goodput_tokens_per_s`` are decode tokens in time of requests whose first token was in time.
    ``mean_in_flight`` counts admitted requests, ``waiting_at_end`` those still waiting for room,
    ``refusals`` how often the request at the head of the line was refused, ``restarts`` requests
    begun again after a crash or for want of pages, ``dropped`` those that no machine could ever
    hold. ``links`` are sorted by total wait, longest first. ``events`` and ``messages`` count the
    whole run: what its heap saw, and what arrived somewhere.
    """

    decode_tokens_per_s: float
    prompt_tokens_per_s: float
    goodput_tokens_per_s: float
    first_token: Latency
    prompt: Latency
    decode: Latency
    finished_requests: int
    mean_in_flight: float
    waiting_at_end: int
    refusals: int
    restarts: int
    dropped: int
    nodes: tuple[NodeUse, ...]
    links: tuple[LinkUse, ...]
    events: int
    messages: int

    @property
    def rank(self) -> tuple[float, float]:
        """Of runs fed the same: the one that served most first, then the shorter time a token."""
        return -self.decode_tokens_per_s, self.decode.mean_s


def node_use(worker: Worker, window_s: float) -> NodeUse:
    """What a worker did since counting began."""
    passes = max(1, worker.passes)
    return NodeUse(
        worker.id,
        min(1.0, worker.busy_s / window_s),
        worker.passes,
        worker.decodes_run / passes,
        worker.prefill_run / passes,
        worker.ledger.peak_pages / worker.ledger.pages if worker.ledger.pages else 0.0,
        worker.ledger.refusals,
    )


def link_use(link: SimLink, window_s: float) -> LinkUse:
    """What a link carried since counting began."""
    messages = link.messages + link.decodes
    busy_s = link.busy_s + link.decodes * link.decode_s
    return LinkUse(
        link.source_id,
        link.target_id,
        messages,
        min(1.0, busy_s / window_s),
        link.wait_s / messages if messages else 0.0,
        link.max_wait_s,
    )
