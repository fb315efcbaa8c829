"""Bodies that are too large, and prompts that are too long, and what others notice meanwhile."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from client.gateway import bodies
from client.gateway.app import MAX_BODY_BYTES
from client.gateway.openai.fields import MOST_MESSAGES
from client.gateway.workers import SHORT_BYTES
from tests.client.gateway.toy import CONTEXT
from tests.client.gateway.world import World

CHAT, COMPLETIONS, BATCHES = "/v1/chat/completions", "/v1/completions", "/v1/batches"


@pytest.fixture
def http(world: World) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {world.new_key()}"}
    with httpx2.Client(base_url=world.url, headers=headers, timeout=5) as client:
        yield client


def test_bodies_that_do_not_end_have_a_bound_a_key_and_others_are_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MOST_OF_A_KEY", 2**20)
    secret = world.new_key()
    sockets = [_half_a_body(world, secret, 300_000) for _ in range(3)]
    try:
        world.until(lambda: world.gateway.bodies._held.total() == 900_000)
        one_more = _half_a_body(world, secret, 300_000)
        assert b" 429 " in one_more.recv(4096).splitlines()[0]
        one_more.close()
        headers = {"authorization": f"Bearer {world.new_key('other')}"}
        asked = {"model": "toy", "messages": said("say:x")}
        answer = httpx2.post(f"{world.base_url}/chat/completions", json=asked, headers=headers)
        assert answer.status_code == 200
    finally:
        for one in sockets:
            one.close()
    world.until(lambda: not world.gateway.bodies._held)


def _half_a_body(world: World, secret: str, size: int) -> socket.socket:
    """A connection that has sent so much of a body of twice that size."""
    connection = socket.create_connection(("127.0.0.1", world.port), timeout=10)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
    head += f"content-length: {2 * size}\r\n\r\n"
    connection.sendall(head.encode() + b" " * size)
    return connection


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, {"messages": said("a" * (MAX_BODY_BYTES - 1000))}),
        (CHAT, {"messages": said(*[""] * (CONTEXT + 1))}),
        (COMPLETIONS, {"prompt": "a" * (MAX_BODY_BYTES - 1000)}),
        (COMPLETIONS, {"prompt": ["a", "a" * (MAX_BODY_BYTES - 1000)]}),
        (COMPLETIONS, {"prompt": [1] * (CONTEXT + 1)}),
    ],
    ids=["one message", "many messages", "a text", "several texts", "token ids"],
)
def test_what_cannot_fit_by_its_bytes_is_refused_before_it_is_made_into_tokens(
    http: httpx2.Client,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    asked: dict[str, Any],
) -> None:
    tokenised = list[object]()
    for name in ("encode", "encode_chat"):
        monkeypatch.setattr(world.tokenizer, name, tokenised.append)
    answer = http.post(path, json={"model": "toy", **asked})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "at least" in error["message"] and error["param"] in asked
    assert not tokenised


def test_more_messages_than_any_context_holds_are_not_looked_at(http: httpx2.Client) -> None:
    asked = {"model": "toy", "messages": ["no message"] * (MOST_MESSAGES + 1)}
    error = http.post(CHAT, json=asked).json()["error"]
    assert error["param"] == "messages"
    assert f"at most {MOST_MESSAGES}" in error["message"]


def test_while_a_long_prompt_is_made_into_tokens_others_are_answered(
    http: httpx2.Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, encode = threading.Event(), threading.Event(), world.tokenizer.encode_chat

    def held(messages: Sequence[Any], *tools: Any) -> list[int]:
        if messages[0]["content"] == "say:slow":
            begun.set()
            go_on.wait(20)
        return encode(messages, *tools)

    monkeypatch.setattr(world.tokenizer, "encode_chat", held)
    slow = json.dumps({"model": "toy", "messages": said("say:slow")}) + " " * SHORT_BYTES
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(http.post, CHAT, content=slow)
        try:
            assert begun.wait(5)
            assert http.get("/health").status_code == 200
            other = http.post(CHAT, json={"model": "toy", "messages": said("say:quick")})
            assert other.json()["choices"][0]["message"]["content"] == "quick"
        finally:
            go_on.set()
        assert answer.result().json()["choices"][0]["message"]["content"] == "slow"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, BATCHES])
@pytest.mark.parametrize("is_declared", [True, False])
def test_a_body_that_is_too_large_is_refused(
    http: httpx2.Client, path: str, is_declared: bool
) -> None:
    body = b"{" + b" " * MAX_BODY_BYTES
    answer = http.post(path, content=body if is_declared else iter([body]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert str(MAX_BODY_BYTES) in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
