"""A stranger's web server is dialled where it was looked at, and holds nobody up."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from core.models import dialling, places
from core.models.places import place_of
from core.protocol.errors import Unreachable

NAME = "files.example"
CHECKED, INSIDE = "127.0.0.2", "127.0.0.1"  # two addresses of this machine: the first counts public
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
Answer = Callable[[socket.socket], None]


def say(data: bytes) -> Answer:
    return lambda peer: peer.sendall(data)


class Server:
    """A web server, at every address of this machine unless one is given: its answers in turn."""

    def __init__(
        self, *answers: Answer, tls: ssl.SSLContext | None = None, host: str = "0.0.0.0"
    ) -> None:
        self.answers, self.tls = list(answers), tls
        self.dialled: list[str] = []  # our address, by connection
        self.asked: list[bytes] = []
        self.socket = socket.create_server((host, 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            self.dialled.append(peer.getsockname()[0])
            try:
                with self.tls.wrap_socket(peer, server_side=True) if self.tls else peer as one:
                    self.asked.append(one.recv(4096))
                    if self.asked[-1]:
                        self.answers.pop(0)(one)
            except OSError:
                continue  # it went away, or does not trust us


@contextmanager
def serving(*answers: Answer, **how: Any) -> Iterator[Server]:
    server = Server(*answers, **how)
    try:
        yield server
    finally:
        server.socket.close()


class Names:
    """What names stand for, look after look, the last for ever."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.known: dict[str, list[list[str]]] = {}
        self.looked: list[str] = []
        self._real = socket.getaddrinfo
        patch.setattr(socket, "getaddrinfo", self._find)
        patch.setattr(dialling, "is_public", lambda address: address == CHECKED)
        for variable in ("http_proxy", "https_proxy", "all_proxy"):
            patch.delenv(variable, raising=False)
            patch.delenv(variable.upper(), raising=False)

    def _find(self, host: Any, port: Any, *rest: Any, **named: Any) -> Any:
        if host not in self.known:
            return self._real(host, port, *rest, **named)
        self.looked.append(host)
        meant = self.known[host]
        found = meant.pop(0) if len(meant) > 1 else meant[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


def test_what_was_looked_at_is_dialled_whatever_the_name_stands_for_later(names: Names) -> None:
    names.known[NAME] = [[CHECKED], [INSIDE]]
    with serving(say(OK)) as server:
        place = place_of(f"http://{NAME}:{server.port}/")
        assert place.whole("f", 100) == b"hello"
        assert (server.dialled, names.looked) == ([CHECKED], [NAME])
        assert f"Host: {NAME}:{server.port}".encode() in server.asked[0]
        # The next connection looks anew, and is not made.
        with pytest.raises(Unreachable, match="is not read from"):
            place.whole("f", 100)
        assert server.dialled == [CHECKED]


@pytest.mark.parametrize("found", [[INSIDE], [CHECKED, INSIDE], [INSIDE, CHECKED]])
def test_a_name_with_one_address_inside_is_not_dialled(names: Names, found: list[str]) -> None:
    names.known[NAME] = [found]
    with serving(say(OK)) as server:
        with pytest.raises(Unreachable, match="is not read from"):
            place_of(f"http://{NAME}:{server.port}/").whole("f", 100)
        assert server.dialled == []


def test_a_redirect_leads_nobody_inside_and_its_body_is_not_read(names: Names) -> None:
    names.known = {NAME: [[CHECKED]], "inner.example": [[INSIDE]], "other.example": [[CHECKED]]}

    def to(host: str) -> Answer:
        def answer(peer: socket.socket) -> None:
            where = f"Location: http://{host}:{server.port}/f"
            peer.sendall(f"HTTP/1.1 302 Found\r\n{where}\r\n\r\n".encode())
            peer.settimeout(20)
            while peer.send(bytes(2**16)):  # until nobody listens any more
                pass

        return answer

    with serving(to("inner.example"), to("other.example"), say(OK)) as server:
        place = place_of(f"http://{NAME}:{server.port}/")
        with pytest.raises(Unreachable, match=r"inner\.example is not read from"):
            place.whole("f", 100)
        assert server.dialled == [CHECKED]
        assert place.whole("f", 100) == b"hello"
        assert names.looked == [NAME, "inner.example", NAME, "other.example"]
    with serving(*[to(NAME)] * 20) as server, pytest.raises(Unreachable) as refused:
        place_of(f"http://{NAME}:{server.port}/").whole("f", 100)
    assert "redirects" in refused.value.why


def test_an_address_that_is_down_leaves_the_next_one(names: Names) -> None:
    with serving(say(OK), host=CHECKED) as server:
        names.known[NAME] = [[INSIDE, CHECKED]]
        place = place_of(f"http://{NAME}:{server.port}/", are_private_allowed=True)
        assert place.whole("f", 100) == b"hello"


def test_the_certificate_must_be_of_the_name(
    names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    of = ["-addext", f"subjectAltName=DNS:{NAME}"]
    subprocess.run(["openssl", *asked.split(), *files, *of], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    names.known = {NAME: [[CHECKED]], "other.example": [[CHECKED]]}
    with serving(say(OK), tls=tls) as server:
        assert place_of(f"https://{NAME}:{server.port}/").whole("f", 100) == b"hello"
        with pytest.raises(Unreachable) as refused:
            place_of(f"https://other.example:{server.port}/").whole("f", 100)
        assert "other.example" in refused.value.why


def test_what_a_proxy_dials_is_looked_at_here_first(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.known = {NAME: [[CHECKED]], "inner.example": [[INSIDE]]}
    with serving(say(OK)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{INSIDE}:{proxy.port}")
        assert place_of(f"http://{NAME}/").whole("f", 100) == b"hello"
        assert proxy.asked[0].startswith(f"GET http://{NAME}/f ".encode())
        with pytest.raises(Unreachable, match="is not read from"):
            place_of("http://inner.example/").whole("f", 100)
        assert len(proxy.dialled) == 1


def drip(data: bytes) -> Answer:
    def answer(peer: socket.socket) -> None:
        for byte in data:
            peer.sendall(bytes([byte]))
            time.sleep(0.05)

    return answer


def test_a_head_that_trickles_is_not_waited_for(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.known[NAME] = [[CHECKED]]
    monkeypatch.setattr(dialling, "HEAD_WITHIN_S", 0.5)
    head = b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000
    informed = b"HTTP/1.1 102 Processing\r\n\r\n" * 1000
    for data in (head, informed):
        with serving(drip(data)) as server:
            began = time.monotonic()
            with pytest.raises(Unreachable) as refused:
                place_of(f"http://{NAME}:{server.port}/").whole("f", 100)
            assert time.monotonic() - began < 10
            assert refused.value.why


def test_nor_is_what_trickles_between_two_parts(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.known[NAME] = [[CHECKED]]
    monkeypatch.setattr(places, "RATE_OVER_S", 0.5)

    def answer(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n5;")
        drip(b"a" * 10_000)(peer)

    with serving(answer) as server:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            place_of(f"http://{NAME}:{server.port}/").whole("f", 100)
        assert time.monotonic() - began < 10
