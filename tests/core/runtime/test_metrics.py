"""Do metrics have our names, stay apart between programs, and answer over HTTP?"""

import socket

import httpx2
import pytest
from fastapi import FastAPI

from core.protocol.errors import ConfigError
from core.runtime.http_server import HttpServer
from core.runtime.metrics import Metrics


def test_two_programs_in_one_process_count_apart():
    one, other = Metrics(), Metrics()
    one.counter("headrace_requests_total", "Requests.", ["outcome"]).labels("ok").inc(3)
    other.counter("headrace_requests_total", "Requests.", ["outcome"]).labels("ok").inc()
    assert b'headrace_requests_total{outcome="ok"} 3.0' in one.render()[0]
    assert b'headrace_requests_total{outcome="ok"} 1.0' in other.render()[0]


def test_every_name_starts_with_ours():
    metrics = Metrics()
    metrics.histogram("headrace_stage_seconds", "Time.").observe(0.1)
    metrics.gauge("headrace_queue_length", "Queue.").set(2)
    body = metrics.render()[0].decode()
    assert all(
        line.startswith(("headrace_", "# HELP headrace_", "# TYPE headrace_"))
        for line in body.splitlines()
    )


def test_asking_again_gives_the_same_metric_and_another_kind_is_refused():
    metrics = Metrics()
    assert metrics.gauge("headrace_x_bytes", "X.") is metrics.gauge("headrace_x_bytes", "X.")
    with pytest.raises(ValueError, match="already"):
        metrics.histogram("headrace_x_bytes", "X.")


@pytest.mark.parametrize("name", ["requests_total", "headrace_Requests_total", "headrace__total"])
def test_a_foreign_name_is_refused(name):
    with pytest.raises(ValueError, match="name"):
        Metrics().counter(name, "X.")


def test_a_counter_ends_in_total():
    with pytest.raises(ValueError, match="_total"):
        Metrics().counter("headrace_requests", "X.")


async def test_metrics_answer_get_and_head_on_a_port_of_their_own():
    metrics = Metrics()
    metrics.counter("headrace_requests_total", "Requests.").inc()
    server = await metrics.serve(0)
    try:
        async with httpx2.AsyncClient() as http:
            answer = await http.get(f"{server.url}/metrics")
            assert answer.status_code == 200
            assert "headrace_requests_total 1.0" in answer.text
            assert answer.headers["content-type"].startswith("text/plain")
            assert (await http.head(f"{server.url}/metrics")).status_code == 200
            assert (await http.get(f"{server.url}/other")).status_code == 404
    finally:
        await server.stop()
    await server.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)


async def test_a_taken_port_is_an_error_of_configuration():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(ConfigError, match="cannot listen") as caught:
            await Metrics().serve(holder.getsockname()[1])
    assert "another port" in caught.value.next_step


async def test_an_application_that_fails_to_start_raises():
    async def lifespan(app):
        raise RuntimeError("no")
        yield

    with pytest.raises(ConfigError, match="cannot serve"):
        await HttpServer(FastAPI(lifespan=lifespan)).start()


async def test_a_server_leaves_the_programs_signal_handlers_alone():
    import signal

    before = signal.getsignal(signal.SIGTERM)
    async with HttpServer(FastAPI()) as server:
        assert server.port != 0
        assert signal.getsignal(signal.SIGTERM) is before
