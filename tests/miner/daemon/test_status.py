"""What the running daemon answers over HTTP, and to whom it listens."""

from __future__ import annotations

import httpx2

from miner.compute.stepper import Stepped, StepWork
from miner.daemon.status import serve_status
from miner.records.metrics import EngineMetrics, MinerMetrics


async def test_status_and_metrics_are_shown_and_leaving_needs_the_token() -> None:
    metrics, asked = MinerMetrics(), []
    server = await serve_status(
        lambda: {"state": "SERVING"}, metrics.registry, asked.append, "secret"
    )
    good, bad = {"authorization": "Bearer secret"}, {"authorization": "Bearer guess"}
    async with httpx2.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/status")).json() == {"state": "SERVING"}
        assert b"headrace_inflight_requests" in (await http.get("/metrics")).content
        assert (await http.post("/drain")).status_code == 401
        assert (await http.post("/drain", headers=bad)).status_code == 401
        assert (await http.get("/drain", headers=good)).status_code == 405
        for wrong in ("-1", "nan", "soon", "1e9"):
            answer = await http.post(f"/drain?timeout_s={wrong}", headers=good)
            assert answer.status_code == 400, wrong
        assert asked == []
        assert (await http.post("/drain", headers=good)).status_code == 202
        assert (await http.post("/drain?timeout_s=0", headers=good)).status_code == 202
    assert asked == [None, 0.0]
    await server.stop()


def test_counters_follow_their_sources_and_never_count_twice() -> None:
    metrics = MinerMetrics()

    def update(finished: int, **counts: int) -> str:
        metrics.update(
            counts=counts,
            streams={"AuthenticationFailed": 1},
            finished=finished,
            tokens_in=5 * finished,
            tokens_out=7 * finished,
            active=1,
            free=15,
            engine=EngineMetrics(
                busy_s=3.0 * finished,
                idle_s=1.0 * finished,
                steps=finished,
                kv_tokens=100,
                kv_free_tokens=300,
                kv_capacity_tokens=1000,
                tau_ms_by_rows={1: 2.0, 16: 4.0},
                microbatches=3,
                microbatch_rows=8,
                ring_latency_s=0.128,
            ),
            chain_up=True,
            rho_ms={"0x1": 1.0, "0x2": 4.0},
        )
        return metrics.registry.render()[0].decode()

    one, many = ([StepWork(0, 0, rows, 0, b"", None)] for rows in (1, 64))  # type: ignore[arg-type]
    metrics.step(Stepped([], [], one, 0.01), 0)
    metrics.step(Stepped([], [], many, 0.02), 1)
    update(2, **{"E-PEER-AUTH": 3, "request_failed_E-NET-03": 1})
    text = update(3, **{"E-PEER-AUTH": 3, "request_failed_E-NET-03": 2})
    for line in (
        'headrace_requests_total{outcome="finished"} 3.0',
        'headrace_requests_total{outcome="failed"} 2.0',
        'headrace_tokens_total{direction="out"} 21.0',
        'headrace_refused_total{reason="E-PEER-AUTH"} 3.0',
        'headrace_stream_faults_total{reason="AuthenticationFailed"} 1.0',
        'headrace_link_seconds{which="farthest"} 0.004',
        'headrace_stage_seconds_count{kind="decode"} 1.0',
        'headrace_tau_seconds{rows="1"} 0.002',
        'headrace_tau_seconds{rows="16"} 0.004',
        'headrace_batch_rows_bucket{le="64.0"} 2.0',
        'headrace_compute_seconds_total{state="busy"} 9.0',
        'headrace_compute_seconds_total{state="waiting"} 3.0',
        "headrace_bubble_ratio 0.25",
        'headrace_kv_tokens{state="promised"} 700.0',
        'headrace_kv_tokens{state="held"} 100.0',
        "headrace_microbatches 3.0",
        "headrace_ring_latency_seconds 0.128",
        "headrace_chain_up 1.0",
    ):
        assert line in text, line
