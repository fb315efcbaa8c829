"""Uploads without an end, of more than a key may keep, and onto a disk that is nearly full."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from client.gateway import app
from core.runtime.network.pace import FramePace
from tests.client.gateway.world import World

KIB = 2**10
START = (
    b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
)
FORM = {"content-type": "multipart/form-data; boundary=x"}


def upload(world: World, secret: str, size: int) -> httpx2.Response:
    return httpx2.post(
        f"{world.base_url}/files",
        headers={"authorization": f"Bearer {secret}"},
        files={"file": ("a.jsonl", b"x" * size)},
        data={"purpose": "batch"},
        timeout=10,
    )


def outcome(answer: httpx2.Response) -> tuple[int, str]:
    error = answer.json().get("error")
    return answer.status_code, error["code"] if error else ""


def on_disk(world: World) -> list[Path]:
    return list((world.folder / "gateway" / "files").iterdir())


def head_of(secret: str) -> bytes:
    """Of an upload that comes in chunks."""
    return (
        "POST /v1/files HTTP/1.1\r\nhost: gateway\r\ntransfer-encoding: chunked\r\n"
        f"authorization: Bearer {secret}\r\ncontent-type: {FORM['content-type']}\r\n\r\n"
    ).encode()


def chunk_of(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Endless:
    """An upload, chunk by chunk, over a socket."""

    def __init__(self, world: World, secret: str, start: bytes = START) -> None:
        self._socket = socket.create_connection(("127.0.0.1", world.port), timeout=10)
        self._socket.sendall(head_of(secret))
        self.send(start)

    def send(self, data: bytes) -> None:
        self._socket.sendall(chunk_of(data))

    def is_answered(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def answer(self) -> tuple[int, dict[str, Any]]:
        with self._socket.makefile("rb") as file:
            status = int(file.readline().split()[1])
            headers = dict(
                line.decode().lower().strip().split(": ", 1)
                for line in iter(file.readline, b"\r\n")
            )
            return status, json.loads(file.read(int(headers["content-length"])))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def small(make_world: Callable[..., World]) -> World:
    return make_world(flags={"gateway.max_file": "256KiB", "gateway.files_per_key": "400KiB"})


@pytest.fixture
def endless(small: World) -> Iterator[Callable[..., Endless]]:
    begun = list[Endless]()

    def begin(*args: Any) -> Endless:
        begun.append(Endless(small, *args))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


@pytest.mark.parametrize(
    ("start", "filler"),
    [
        (START, b"x" * 64 * KIB),
        (START.partition(b"batch")[0], b"x" * 64 * KIB),
        (START + b"\r\n--x--\r\n", b"x" * 64 * KIB),
    ],
    ids=["its file", "another field", "after its end"],
)
def test_an_upload_without_an_end_is_refused_at_the_limit(
    small: World, endless: Callable[..., Endless], start: bytes, filler: bytes
) -> None:
    sending, sent = endless(small.new_key(), start), 0
    while not sending.is_answered() and sent < 64 * KIB * KIB:
        sending.send(filler)
        sent += len(filler)
    assert sent < 16 * KIB * KIB, "what lies in the sockets' buffers, and no more"
    status, body = sending.answer()
    assert (status, body["error"]["code"]) == (413, "request_too_large")
    assert not on_disk(small) and not small.gateway.files.arriving


def test_a_file_is_a_request_of_its_key(small: World) -> None:
    secret = small.new_key(requests_per_minute=2)
    for _ in range(2):
        assert outcome(upload(small, secret, 8)) == (200, "")
    assert outcome(upload(small, secret, 8)) == (429, "rate_limited")
    assert len(on_disk(small)) == 2


def test_a_key_keeps_no_more_than_its_share(small: World) -> None:
    secret, other = small.new_key(), small.new_key("other")
    first = upload(small, secret, 240 * KIB)
    assert outcome(first) == (200, "")
    assert outcome(upload(small, secret, 240 * KIB)) == (413, "file_quota_exceeded")
    assert outcome(upload(small, other, 240 * KIB)) == (200, "")
    assert len(on_disk(small)) == 2
    headers = {"authorization": f"Bearer {secret}"}
    httpx2.delete(f"{small.base_url}/files/{first.json()['id']}", headers=headers)
    assert outcome(upload(small, secret, 240 * KIB)) == (200, "")


def test_what_arrives_side_by_side_counts_too(
    small: World, endless: Callable[..., Endless]
) -> None:
    secret = small.new_key()
    slow = endless(secret)
    slow.send(b"x" * 240 * KIB)
    small.until(lambda: small.gateway.files.arriving.total() == 240 * KIB)
    assert outcome(upload(small, secret, 240 * KIB)) == (413, "file_quota_exceeded")
    slow.close()
    small.until(lambda: not small.gateway.files.arriving)
    assert outcome(upload(small, secret, 240 * KIB)) == (200, "")


def test_nothing_is_taken_while_the_disk_is_nearly_full(make_world: Callable[..., World]) -> None:
    world = make_world(flags={"gateway.keep_free": "900TiB"})
    answer = upload(world, world.new_key(), KIB)
    assert outcome(answer) == (503, "disk_low")
    assert answer.headers["x-should-retry"] == "true"
    assert not on_disk(world)


def test_what_a_dead_process_left_half_written_goes_at_the_next_start(world: World) -> None:
    world.stop()
    draft = world.folder / "gateway" / "files" / ".file-half"
    draft.write_bytes(b"x")
    world.start()
    assert not draft.exists()


def test_empty_files_count_as_blocks_and_are_listed_page_by_page(small: World) -> None:
    secret = small.new_key()
    answers = [upload(small, secret, 1) for _ in range(100)]
    assert [answer.status_code for answer in answers] == [200] * 100
    assert outcome(upload(small, secret, 1)) == (413, "file_quota_exceeded")
    names = [answer.json()["id"] for answer in answers]
    headers, seen, after = {"authorization": f"Bearer {secret}"}, list[str](), {}
    while True:
        asked = {"limit": "30", "order": "asc", **after}
        page = httpx2.get(f"{small.base_url}/files", params=asked, headers=headers).json()
        seen += [one["id"] for one in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert sorted(seen) == sorted(names) and len(seen) == len(set(seen))
    other = {"authorization": f"Bearer {small.new_key('other')}"}
    page = httpx2.get(f"{small.base_url}/files", params={"after": names[0]}, headers=other)
    assert page.json()["data"] == []


def test_all_uploads_together_share_a_pace(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = list[int]()

    class Counted(FramePace):
        async def turn(self) -> None:
            turns.append(id(self))
            await super().turn()

    monkeypatch.setattr(app, "FramePace", Counted)
    world = make_world()
    for name in ("alice", "bob"):
        assert upload(world, world.new_key(name), 256 * KIB).status_code == 200
    assert len(turns) >= 4 and len(set(turns)) == 1
