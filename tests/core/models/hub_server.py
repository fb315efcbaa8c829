"""A model hub on this machine: its protocol as far as its own client asks for it, and its moods."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = sha1(b"the only commit").hexdigest()
TOKEN = "hf_of_one_who_took_the_terms"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Hub:
    """Repositories by name, each a folder, and how the hub behaves."""

    url: str = ""
    repositories: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    cuts: int = 0  # answers that stop in the middle
    is_lying: bool = False
    has_ranges: bool = True
    fails: int = 0  # answers of 503
    seen_tokens: set[str] = field(default_factory=set)
    cdn_tokens: set[str] = field(default_factory=set)
    sent_bytes: int = 0


@contextmanager
def running_hub(**repositories: Path) -> Iterator[Hub]:
    """A hub on a free port; names of repositories with `__` for the slash."""
    hub = Hub(repositories={k.replace("__", "/"): v for k, v in repositories.items()})
    cdn = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, is_cdn=True, cdn=""))
    cdn_url = f"http://localhost:{cdn.server_port}"
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, is_cdn=False, cdn=cdn_url))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threads = [threading.Thread(target=s.serve_forever, daemon=True) for s in (server, cdn)]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for one in (server, cdn):
            one.shutdown()
            one.server_close()


def _handler(hub: Hub, *, is_cdn: bool, cdn: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._serve(has_body=False)

        def do_GET(self) -> None:
            self._serve(has_body=True)

        def _serve(self, *, has_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path, self.headers.get("range", "")))
            token = self.headers.get("authorization", "").removeprefix("Bearer ")
            (hub.cdn_tokens if is_cdn else hub.seen_tokens).add(token)
            if hub.fails:
                hub.fails -= 1
                return self._say(503, b"busy")
            if is_cdn:
                return self._file(Path(path), has_body)
            api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path)
            tree = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path)
            file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            found = api or tree or file
            if found is None:
                return self._say(404, b"no such page")
            return self._repository(found, token, has_body, api=bool(api), tree=bool(tree))

        def _repository(
            self, found: re.Match[str], token: str, has_body: bool, *, api: bool, tree: bool
        ) -> None:
            name, revision = found[1], found[2] or "main"
            folder = hub.repositories.get(name)
            if folder is None:
                return self._say(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            if name in hub.gated and token != TOKEN and not (api or tree):
                said = {"X-Error-Code": "GatedRepo", "X-Error-Message": f"{name} is restricted"}
                return self._say(403 if token else 401, b"{}", said)
            if revision not in ("main", COMMIT):
                return self._say(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            names = sorted(p.name for p in folder.iterdir() if p.is_file())
            if api:
                siblings = [{"rfilename": n} for n in names]
                said_of = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings}
                return self._say(200, json.dumps(said_of | {"tags": [], "private": False}).encode())
            if tree:
                listed = [
                    {
                        "type": "file",
                        "path": n,
                        "size": (folder / n).stat().st_size,
                        "oid": "0" * 40,
                    }
                    for n in names
                ]
                return self._say(200, json.dumps(listed).encode())
            path = folder / found[3]
            if not path.is_file():
                return self._say(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            said = {
                "X-Repo-Commit": COMMIT,
                "ETag": f'"{sha256(path.read_bytes()).hexdigest()}"',
                "X-Linked-Size": str(path.stat().st_size),
                "X-Linked-ETag": f'"{sha256(path.read_bytes()).hexdigest()}"',
            }
            if path.suffix == ".safetensors":  # large files lie elsewhere
                return self._say(302, b"", said | {"Location": f"{cdn}{path}?signed=yes"})
            return self._file(path, has_body, said)

        def _file(self, path: Path, has_body: bool, said: dict[str, str] | None = None) -> None:
            data = path.read_bytes()
            said, status = dict(said or {}), 200
            asked = _RANGE.fullmatch(self.headers.get("range", ""))
            if asked and hub.has_ranges:
                start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
                said["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
                status, data = 206, data[start:end]
            if hub.is_lying:
                data = bytes([data[0] ^ 1]) + data[1:]
            is_cut = hub.cuts > 0 and has_body and path.suffix == ".safetensors"
            hub.cuts -= is_cut
            self._say(status, data, said, has_body=has_body, cut=len(data) // 2 if is_cut else None)

        def _say(
            self,
            status: int,
            data: bytes,
            said: dict[str, str] | None = None,
            *,
            has_body: bool = True,
            cut: int | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in (said or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if has_body and self.command != "HEAD":
                sent = data if cut is None else data[:cut]
                self.wfile.write(sent)
                hub.sent_bytes += len(sent)
            if cut is not None:
                self.close_connection = True

    return Handler
