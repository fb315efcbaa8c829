"""A PostgreSQL server of a test's own: nobody else knows it, nothing of it stays."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

#: Debian keeps the server's programs off the path.
PLACES = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/bin")]


def program(name: str) -> str | None:
    """A program of PostgreSQL, None where it is not installed."""
    found = shutil.which(name)
    return found or next((str(place / name) for place in PLACES if (place / name).exists()), None)


def why_not() -> str:
    """What is missing to run one, "" if nothing is."""
    if program("initdb") is None or program("postgres") is None:
        return "PostgreSQL is not installed (Debian: postgresql)"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed: pip install 'headrace[postgres]'"
    return ""


@contextmanager
def server() -> Iterator[str]:
    """A fresh server on loopback; the URL of its empty database, without a driver's name."""
    who = _somebody()
    folder = Path(tempfile.mkdtemp(prefix="headrace-pg-"))
    try:
        if who:
            shutil.chown(folder, who["user"])
        data, port, password = folder / "data", _free_port(), secrets.token_hex(8)
        secret = folder / "password"
        secret.write_text(password)
        secret.chmod(0o644)
        subprocess.run(
            [
                str(program("initdb")),
                "-D",
                str(data),
                "-U",
                "headrace",
                "-A",
                "scram-sha-256",
                "--pwfile",
                str(secret),
                "-E",
                "UTF8",
                "--locale",
                "C",
                "--no-sync",
            ],
            check=True,
            capture_output=True,
            cwd=folder,
            **who,
        )
        with (folder / "log").open("wb") as log:
            running = subprocess.Popen(
                [
                    str(program("postgres")),
                    "-D",
                    str(data),
                    "-p",
                    str(port),
                    "-F",
                    "-c",
                    "listen_addresses=127.0.0.1",
                    "-c",
                    "unix_socket_directories=",
                ],
                stdout=log,
                stderr=log,
                cwd=folder,
                **who,
            )
        try:
            url = f"postgresql://headrace:{password}@127.0.0.1:{port}/postgres"
            _wait(url, running, folder / "log")
            yield url
        finally:
            running.send_signal(signal.SIGINT)  # fast shutdown
            running.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def database(url: str, name: str) -> str:
    """The URL of a new, empty database on that server."""
    import psycopg

    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{url.rpartition('/')[0]}/{name}"


def _somebody() -> dict[str, Any]:
    """Whom the server runs as: it refuses to be root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = "postgres" if "postgres" in names else "nobody"
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _wait(url: str, running: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if running.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text()) from None
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
