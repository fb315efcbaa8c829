"""Where are a published model's files, and how are some bytes of one read from there?

    hf://PUBLISHER/REPOSITORY@REVISION   a model hub, through its own client: token, cache, endpoint
    https://HOST/PATH/                   any web server that serves ranges of files
    file:///FOLDER                       a folder of this machine

What comes is held to hashes by who reads it, so a place need not be trusted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote, urlsplit

from core.protocol.errors import ModelGated, ModelMissing, Unreachable, UsageError

if TYPE_CHECKING:
    import httpx2

#: Called with the place of bytes in their file, and the bytes.
Sink = Callable[[int, bytes], None]
MOST_URI_CHARACTERS = 500
_HUB = re.compile(r"hf://([\w.-]{1,96}/[\w.-]{1,96}|[\w.-]{1,96})(?:@([\w./-]{1,128}))?", re.ASCII)
_TIMEOUT_S = 30.0
_CHUNK_BYTES = 2**20
_RETRIES = 3  # of the hub's client, each after a longer wait
#: A place that sends less than this, a minute long, is left for another: one that sends a byte now
#: and then would hold a machine for ever.
LEAST_BYTES_PER_S, RATE_OVER_S = 2**15, 60.0
_GATED = (401, 403)
_PLAIN = {"Accept-Encoding": "identity"}
_GONE = (404, 410)


class ModelPlace(Protocol):
    """One place that has a model's files."""

    uri: str

    def read(self, file: str, start: int, end: int, size: int, sink: Sink) -> None:
        """Bytes [start, end) of a file of `size` bytes, piece by piece in order.

        Raises ModelMissing where the place has no such file, ModelGated where it wants to know who
        asks, and Unreachable where it does not answer, or stops in the middle.
        """

    def whole(self, file: str, most_bytes: int) -> bytes:
        """A file whose length nobody knows. Raises as `read`, and Unreachable for a longer one."""


def place_of(uri: str, *, are_private_allowed: bool = False) -> ModelPlace:
    """The place that a URI names. Raises UsageError for what is none."""
    hub = _HUB.fullmatch(uri)
    if hub:
        return HubPlace(hub[1], hub[2] or "main")
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = urlsplit("")
    if len(uri) <= MOST_URI_CHARACTERS and parts.scheme in ("http", "https") and parts.hostname:
        return WebPlace(uri, are_private_allowed=are_private_allowed)
    if parts.scheme == "file" and not parts.netloc:
        return FolderPlace(Path(unquote(parts.path)))
    raise UsageError(
        f"'{uri[:80]}' is no place of a model",
        why="it is neither hf://PUBLISHER/REPOSITORY@REVISION, nor https://HOST/PATH/, nor "
        "file:///FOLDER",
    )


class FolderPlace:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.uri = folder, f"file://{quote(str(folder))}"

    def read(self, file: str, start: int, end: int, size: int, sink: Sink) -> None:
        """Raises ModelMissing."""
        path = self.folder / file
        if not path.is_file():
            raise ModelMissing(f"{self.folder} has no {file}")
        with path.open("rb", buffering=0) as stream:
            stream.seek(start)
            while start < end:
                data = stream.read(min(_CHUNK_BYTES, end - start))
                if not data:
                    raise ModelMissing(f"{file} in {self.folder} ends early", why=f"at {start}")
                sink(start, data)
                start += len(data)

    def whole(self, file: str, most_bytes: int) -> bytes:
        """Raises ModelMissing, or Unreachable for a longer file."""
        path = self.folder / file
        if not path.is_file():
            raise ModelMissing(f"{self.folder} has no {file}")
        with path.open("rb") as stream:
            return _within(stream.read(most_bytes + 1), self.uri, file, most_bytes)


class WebPlace:
    """A folder of a web server."""

    def __init__(self, uri: str, *, are_private_allowed: bool) -> None:
        from core.models.dialling import WebClient

        self.uri = uri if uri.endswith("/") else f"{uri}/"
        self._web = WebClient(are_private_allowed=are_private_allowed, timeout_s=_TIMEOUT_S)

    def read(self, file: str, start: int, end: int, size: int, sink: Sink) -> None:
        """As `ModelPlace.read`."""
        with (
            _told(self.uri, file),
            self._web.asked(self.uri + quote(file), _range_headers(start, end)) as answer,
        ):
            _pass_on(answer, self.uri, file, start, end, size, sink)

    def whole(self, file: str, most_bytes: int) -> bytes:
        """As `ModelPlace.whole`."""
        with (
            _told(self.uri, file),
            self._web.asked(self.uri + quote(file), _PLAIN) as answer,
        ):
            return _all_of(answer, self.uri, file, most_bytes)


class HubPlace:
    """A repository of a model hub, read through `huggingface_hub`, with what its user has set."""

    def __init__(self, repository: str, revision: str) -> None:
        self.repository, self.revision = repository, revision
        self.uri = f"hf://{repository}@{revision}"

    def read(self, file: str, start: int, end: int, size: int, sink: Sink) -> None:
        """As `ModelPlace.read`; from the hub's cache where the file is there."""
        with _told(self.uri, file):
            cached = self._cached(file)
            if cached is not None and cached.stat().st_size == size:
                FolderPlace(cached.parent).read(file, start, end, size, sink)
                return
            with self._asked(file, _range_headers(start, end)) as answer:
                _pass_on(answer, self.uri, file, start, end, size, sink)

    def whole(self, file: str, most_bytes: int) -> bytes:
        """As `ModelPlace.whole`; from the hub's cache where the file is there."""
        with _told(self.uri, file):
            cached = self._cached(file)
            if cached is not None:
                return FolderPlace(cached.parent).whole(file, most_bytes)
            with self._asked(file, _PLAIN) as answer:
                return _all_of(answer, self.uri, file, most_bytes)

    def _cached(self, file: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repository, file, revision=self.revision)
        return Path(found) if isinstance(found, str) else None

    def _asked(self, file: str, headers: dict[str, str]) -> AbstractContextManager[httpx2.Response]:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, http_stream_backoff

        return http_stream_backoff(
            "GET",
            hf_hub_url(self.repository, file, revision=self.revision),
            max_retries=_RETRIES,
            headers=build_hf_headers() | headers,
            timeout=_TIMEOUT_S,
            follow_redirects=True,
        )


def _range_headers(start: int, end: int) -> dict[str, str]:
    return _PLAIN | {"Range": f"bytes={start}-{end - 1}"}


def _all_of(answer: httpx2.Response, uri: str, file: str, most_bytes: int) -> bytes:
    _refuse_status(answer, uri, file)
    if answer.status_code != 200:
        raise Unreachable(f"cannot read {file} from {uri}", why=f"it said {answer.status_code}")
    data = bytearray()
    for part in paced(answer.iter_raw(), uri, file):
        data += part
        _within(data, uri, file, most_bytes)
    return bytes(data)


def _within(data: bytes | bytearray, uri: str, file: str, most_bytes: int) -> bytes:
    if len(data) > most_bytes:
        raise Unreachable(
            f"cannot read {file} from {uri}", why=f"it has more than {most_bytes} bytes"
        )
    return bytes(data)


def _refuse_status(answer: httpx2.Response, uri: str, file: str) -> None:
    why = f"it answers with {answer.status_code}"
    if answer.status_code in _GATED:
        raise ModelGated(f"{uri} does not show {file} to just anybody", why=why)
    if answer.status_code in _GONE:
        raise ModelMissing(f"{uri} has no {file}", why=why)


def _pass_on(
    answer: httpx2.Response, uri: str, file: str, start: int, end: int, size: int, sink: Sink
) -> None:
    """Hand on the bytes of an answer that is about the right ones."""
    _refuse_status(answer, uri, file)
    whole = answer.status_code == 200 and start == 0 and end == size
    if not whole and answer.status_code != 206:
        why = f"it answers with {answer.status_code}"
        if answer.status_code == 200:
            why = "it does not serve ranges of files"
        raise Unreachable(f"cannot read {file} from {uri}", why=why)
    stated = answer.headers.get("content-range", f"bytes {start}-{end - 1}/{size}")
    if stated not in (f"bytes {start}-{end - 1}/{size}", f"bytes {start}-{end - 1}/*"):
        raise Unreachable(
            f"{uri} has another {file}",
            why=f"it answers with {stated[:60]}, asked for were {start}-{end - 1} of {size}",
        )
    for data in paced(answer.iter_raw(), uri, file):
        data = data[: end - start]
        sink(start, data)
        start += len(data)
        if start == end:
            return
    raise Unreachable(f"{uri} stopped in the middle of {file}", why=f"{end - start} bytes are left")


def paced(
    parts: Iterable[bytes], uri: str, file: str, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[bytes]:
    """Parts of a file as they come. Raises Unreachable where they come too slowly."""
    from core.models.dialling import within

    since_s, came, coming = monotonic(), 0, iter(parts)
    while True:
        with within(RATE_OVER_S):  # nor may what lies between two parts trickle
            part = next(coming, None)
        if part is None:
            return
        came += len(part)
        passed_s = monotonic() - since_s
        if passed_s >= RATE_OVER_S:
            if came < LEAST_BYTES_PER_S * passed_s:
                raise Unreachable(
                    f"{uri} sends {file} too slowly",
                    why=f"{came} bytes in {passed_s:.0f} s, less than {LEAST_BYTES_PER_S} a second",
                )
            since_s, came = monotonic(), 0
        yield part


@contextmanager
def _told(uri: str, file: str) -> Iterator[None]:
    """Errors of the libraries as errors that say what to do."""
    import httpx2
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
    )

    try:
        yield
    except OfflineModeIsEnabled as error:
        raise Unreachable(
            f"cannot read {file} from {uri}",
            why="HF_HUB_OFFLINE is set, and the file is not in the hub's cache",
            next_step="unset HF_HUB_OFFLINE, or fetch the repository while it is not set",
        ) from error
    except GatedRepoError as error:
        raise ModelGated(f"{uri} does not show {file} to just anybody", why=str(error)) from error
    except (HfHubHTTPError, HFValidationError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        why = str(error).strip() or type(error).__name__
        raise Unreachable(f"cannot read {file} from {uri}", why=why) from error
