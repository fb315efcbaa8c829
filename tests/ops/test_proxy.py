"""Does a gateway behind a real nginx, with the configuration that we ship, keep strangers out?"""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest

from tests.client.gateway.world import World
from tests.conftest import take_free_port

SHIPPED = Path(__file__).resolve().parents[2] / "ops" / "nginx" / "headrace.conf"
MISSING = [name for name in ("nginx", "openssl") if shutil.which(name) is None]
PAGES = ("/", "/keys", "/wallet", "/jobs", "/api/keys", "/api/wallet", "/live/overview")
TOKEN_S = 0.05

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not installed")


def configuration(folder: Path, port: int, gateway_port: int, *, adds_headers: bool) -> str:
    """The shipped file with this test's ports and certificate, as a whole configuration."""
    text = SHIPPED.read_text()
    for pattern, found in {
        r"listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        r"server_name \S+;": "server_name _;",
        r"(ssl_certificate) \S+;": rf"\1 {folder / 'cert.pem'};",
        r"(ssl_certificate_key) \S+;": rf"\1 {folder / 'key.pem'};",
        r"127\.0\.0\.1:8080": f"127.0.0.1:{gateway_port}",
    }.items():
        text, count = re.subn(pattern, found, text)
        assert count == 1, pattern
    if not adds_headers:  # a proxy of somebody who did not read
        text = re.sub(r"proxy_set_header X-Forwarded-For .*", "", text)
    temporary = "".join(
        f"{kind}_temp_path {folder / kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off;\npid {folder / 'pid'};\nerror_log {folder / 'log'};\nevents {{}}\n"
        f"http {{ access_log off;\n{temporary}{text} }}\n"
    )


class Proxied:
    """A gateway and the nginx before it."""

    def __init__(self, folder: Path, **flags: object) -> None:
        self.folder, self.port = folder, take_free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        given = {"gateway.dashboard": "true", "gateway.public_url": self.url, **flags}
        self.world = World(folder / "world", flags=given)

    def start(self, *, adds_headers: bool = True) -> Proxied:
        """Raises AssertionError with nginx's own words."""
        self.world.start()
        make_certificate(self.folder)
        file = self.folder / "nginx.conf"
        file.write_text(
            configuration(self.folder, self.port, self.world.port, adds_headers=adds_headers)
        )
        self.nginx = subprocess.Popen(["nginx", "-c", file, "-p", self.folder])
        self.trusted = ssl.create_default_context(cafile=self.folder / "cert.pem")
        with self.browser() as http:
            while True:
                assert self.nginx.poll() is None, (self.folder / "log").read_text()
                try:
                    assert http.get("/health").json() == {"ok": True}
                    return self
                except httpx2.ConnectError:
                    time.sleep(0.02)

    def stop(self) -> None:
        self.nginx.terminate()
        self.nginx.wait(20)
        self.world.stop()

    def browser(self, **headers: str) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, verify=self.trusted, timeout=30, headers=headers)


def make_certificate(folder: Path) -> None:
    asked = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    asked += " -addext subjectAltName=IP:127.0.0.1"
    files = ("-keyout", folder / "key.pem", "-out", folder / "cert.pem")
    subprocess.run(
        ["openssl", *asked.split(), *files],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxied]:
    proxied = Proxied(tmp_path).start()
    yield proxied
    proxied.stop()


def test_through_a_proxy_the_owner_has_a_session_and_nobody_else_sees_anything(
    proxied: Proxied,
) -> None:
    world = proxied.world
    link = f"{proxied.url}/login?token={world.run(world.gateway.logins.new())}"
    with proxied.browser() as stranger, proxied.browser() as owner:
        for path in PAGES:
            assert stranger.get(path).status_code == 403, path
        assert stranger.get("/metrics").status_code == 404
        opened = owner.get(link)
        assert opened.status_code == 303 and opened.headers["location"] == "/"
        assert "secure" in opened.headers["set-cookie"].lower()
        for path in PAGES[:-1]:
            assert owner.get(path).status_code == 200, path
        assert stranger.get(link).status_code == 403
        token = re.search(r'name="csrf-token" content="([^"]+)"', owner.get("/keys").text)
        assert token
        change = {"x-csrf-token": token[1], "origin": proxied.url}
        assert owner.post("/keys", data={"name": "x"}, headers=change).status_code == 201
        foreign = {**change, "origin": "https://evil.example"}
        assert owner.post("/keys", data={"name": "y"}, headers=foreign).status_code == 403


@pytest.mark.parametrize("said", ["127.0.0.1", "::1", "127.0.0.1, 127.0.0.1"])
def test_what_a_stranger_says_of_itself_is_not_believed_even_with_local_reading(
    tmp_path: Path, said: str
) -> None:
    proxied = Proxied(tmp_path, **{"gateway.local_reading": "true"}).start()
    try:
        names = ("x-forwarded-for", "x-real-ip", "forwarded")
        for name in names:
            with proxied.browser(**{name: said}, host="localhost") as http:
                for path in PAGES:
                    assert http.get(path).status_code == 403, (name, path)
        with httpx2.Client(base_url=proxied.world.url, timeout=30) as local:
            assert local.get("/").status_code == 200
    finally:
        proxied.stop()


def test_a_proxy_that_adds_nothing_opens_nothing_either(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path).start(adds_headers=False)
    try:
        with proxied.browser(host="localhost") as http:
            for path in PAGES:
                assert http.get(path).status_code == 403, path
    finally:
        proxied.stop()


def test_tokens_come_through_one_by_one_and_uploads_as_they_are_sent(proxied: Proxied) -> None:
    world = proxied.world
    world.answerer.token_s = TOKEN_S
    http = httpx2.Client(verify=proxied.trusted, timeout=30)
    with openai.OpenAI(
        base_url=f"{proxied.url}/v1", api_key=world.new_key(), http_client=http
    ) as client:
        hello = [{"role": "user", "content": "say:" + "one two three " * 4}]
        stream = client.chat.completions.create(
            model="toy", messages=hello, stream=True, max_tokens=40
        )
        arrived = [time.monotonic() for chunk in stream if chunk.choices]
        assert len(arrived) > 10
        assert arrived[-1] - arrived[0] > TOKEN_S * len(arrived) / 2, "they came all at once"
        kept = client.files.create(file=("lines.jsonl", b"{}\n" * 700_000), purpose="batch")
        assert kept.bytes == 2_100_000
