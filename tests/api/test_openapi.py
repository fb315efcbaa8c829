"""Does the gateway keep what `/openapi.json` promises, whatever is sent to it?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.client.gateway.world import World
from tests.conftest import take_free_port

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    ignored_auth,
    unsupported_method,
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    flags = {"gateway.max_tokens": "8", "gateway.metrics_port": take_free_port()}
    world = World(Path(tmp_path_factory.mktemp("api")), flags=flags).start()
    yield world
    world.stop()


@pytest.fixture(scope="module")
def secret(shared: World) -> str:
    return shared.new_key()


def test_every_operation_answers_as_it_is_described(shared: World, secret: str) -> None:
    schema = schemathesis.openapi.from_url(f"{shared.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 15
    headers = {"Authorization": f"Bearer {secret}"}
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(
            max_examples=20,
            deadline=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(base_url=shared.url, headers=headers, checks=CHECKS)

        check()


def test_the_description_names_every_endpoint_and_asks_for_a_key(shared: World) -> None:
    described = httpx2.get(f"{shared.url}/openapi.json").json()
    assert set(described["paths"]) >= {
        "/v1/models",
        "/v1/models/{model}",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/files",
        "/v1/files/{file_id}",
        "/v1/files/{file_id}/content",
        "/v1/batches",
        "/v1/batches/{batch_id}",
        "/v1/batches/{batch_id}/cancel",
        "/v1/receipts/{receipt}",
        "/v1/jobs/{job}",
        "/health",
        "/ready",
    }
    for path, operations in described["paths"].items():
        for operation in operations.values():
            assert ("security" in operation) == path.startswith("/v1")


def test_what_is_not_offered_says_what_is(shared: World, secret: str) -> None:
    headers = {"authorization": f"Bearer {secret}"}
    for path in ("/v1/embeddings", "/v1/audio/speech", "/v1/images/generations"):
        answer = httpx2.post(f"{shared.url}{path}", json={}, headers=headers)
        assert answer.status_code == 404
        assert "chat/completions" in answer.json()["error"]["message"]
    wrong = httpx2.get(f"{shared.url}/v1/completions", headers=headers)
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"


def test_health_and_readiness_need_no_key_and_metrics_are_elsewhere(
    shared: World, secret: str
) -> None:
    body = {"model": "toy", "messages": [{"role": "user", "content": "say:x"}]}
    headers = {"authorization": f"Bearer {secret}"}
    httpx2.post(f"{shared.url}/v1/chat/completions", json=body, headers=headers)
    assert httpx2.get(f"{shared.url}/health").json() == {"ok": True}
    assert httpx2.get(f"{shared.url}/ready").json()["models"] == ["toy"]
    for path in ("/health", "/ready"):
        assert httpx2.head(f"{shared.url}{path}").status_code == 200
    assert httpx2.get(f"{shared.url}/metrics").status_code == 404
    port = shared.settings.gateway.metrics_port
    text = httpx2.get(f"http://127.0.0.1:{port}/metrics").text
    for name in (
        'headrace_requests_total{model="toy",outcome="done"}',
        'headrace_tokens_total{direction="out",model="toy"}',
        "headrace_time_to_first_token_seconds_bucket",
        "headrace_inter_token_seconds_bucket",
        "headrace_request_seconds_bucket",
        "headrace_inflight_requests 0.0",
        'headrace_cost_units_total{model="toy"}',
        "headrace_locked_units",
    ):
        assert name in text, name


HALF_A_CHARACTER = b'{"model":"toy","messages":[{"role":"user","content":"\\ud800"}]}'
NO_BODIES = (b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"model": NaN}', b'{"a":' * 5000)


@pytest.mark.parametrize("data", [*NO_BODIES, HALF_A_CHARACTER])
def test_bodies_that_are_no_request_are_400(shared: World, secret: str, data: bytes) -> None:
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/batches"):
        answer = httpx2.post(f"{shared.url}{path}", content=data, headers=headers)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"
