"""What does a helper need to see, and how is it gathered without secrets?"""

from __future__ import annotations

import json
import os
import platform
import time
import traceback
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from core.protocol.errors import UsageError
from core.runtime.folders import Folders, make_private
from core.runtime.redact import redact, redact_text

PACKAGES: Final = (
    "headrace",
    "web3",
    "eth-account",
    "coincurve",
    "torch",
    "transformers",
    "hivemind",
    "fastapi",
    "typer",
)
LOGS_SAVED: Final = 5
CRASHES_SAVED: Final = 5
TRANSACTIONS_SAVED: Final = 20
CRASHES_KEPT: Final = 20


def write_crash(
    program: str, error: BaseException, arguments: Sequence[str], folders: Folders
) -> Path:
    """Write a traceback (without local variables) to the state folder and return the file."""
    folder = make_private(folders.state / "crashes")
    for old in _newest_last(folder, "*.txt")[: -CRASHES_KEPT + 1]:
        old.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    file = folder / f"{program}-{stamp}-{os.getpid()}.txt"
    said = "".join(traceback.format_exception(error))
    text = f"{program} {' '.join(arguments)}\n{json.dumps(versions())}\n\n{said}"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as handle:
        handle.write(redact_text(text))
    return file


def record_transaction(folders: Folders, entry: Mapping[str, Any]) -> None:
    """Append one sent transaction (hash, what, from, to, nonce, outcome) to the journal.

    Hashes are public and kept whole. One line per call, safe with several processes.
    """
    make_private(folders.state)
    line = json.dumps({"at": time.time(), **entry}, default=str) + "\n"
    descriptor = os.open(folders.transactions, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def save_bundle(
    target: Path, folders: Folders, config: Sequence[Mapping[str, Any]], program: str
) -> list[str]:
    """Write a zip with versions, settings and origins, last logs, crashes and transactions.

    Logs and crashes are written without secrets and are redacted once more on the way. Returns the
    names inside. Raises UsageError if ``target`` exists.
    """
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        fix = "choose another name"
        raise UsageError(f"{target} is not written", why="it exists", next_step=fix) from None
    with (
        os.fdopen(descriptor, "wb") as handle,
        zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED) as bundle,
    ):
        for name, text in _contents(folders, config, program):
            bundle.writestr(name, text)
        return bundle.namelist()


def versions() -> dict[str, str]:
    """This program's, Python's, the platform's and the main libraries' versions."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _newest_last(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def _contents(
    folders: Folders, config: Sequence[Mapping[str, Any]], program: str
) -> Iterator[tuple[str, str]]:
    yield "versions.json", json.dumps({"program": program, **versions()}, indent=2)
    yield "config.json", json.dumps(redact(list(config)), indent=2)
    for folder, pattern, count in (
        (folders.logs, "*.log", LOGS_SAVED),
        (folders.state / "crashes", "*.txt", CRASHES_SAVED),
    ):
        for path in _newest_last(folder, pattern)[-count:]:
            text = path.read_text(encoding="utf-8", errors="replace")
            yield f"{folder.name}/{path.name}", redact_text(text)
    if folders.transactions.is_file():
        lines = folders.transactions.read_text(encoding="utf-8").splitlines()
        yield "transactions.jsonl", "\n".join(lines[-TRANSACTIONS_SAVED:]) + "\n"
