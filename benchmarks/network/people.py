"""Who sits at a host of its own, with a wallet and a keyboard?"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from devnet.network import program
from tests import netns
from tests.town.wallets import make_home

T = TypeVar("T")
LIMIT_S, MOST_S = 300.0, 1800.0
_POLL_S = 0.1
_HEADER_BYTES = 14 + 20 + 32
#: Of this process: none of it is at the host where a person sits.
_OURS = ("HEADRACE_", "ETH_", "HF_")


class CommandFailed(Exception):
    """A command that a person typed ended with an error, and its last words."""


@dataclass
class Person:
    """Somebody at a host, with programs installed there. `typed` are the commands so far."""

    namespace: str
    home: Path
    programs: Path
    typed: list[str] = field(default_factory=list)
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def has_wallets(self, **accounts: int) -> None:
        """By name, with accounts of Anvil's phrase."""
        make_home(self.home, accounts)

    def types(self, line: str) -> dict[str, Any]:
        """Run a command to its end and give its result. Raises CommandFailed."""
        self.typed.append(line)
        argv = [*self._argv(line), "--json", "--yes"]
        done = subprocess.run(argv, cwd=self.home, env=self._env(), capture_output=True, text=True)
        if done.returncode:
            raise CommandFailed(f"{line}: {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
        return dict(json.loads(done.stdout.splitlines()[-1])["result"])

    def starts(self, line: str) -> None:
        """Run a command that serves until it is stopped."""
        self.typed.append(line)
        with self._log.open("ab") as log:
            self._running.append(
                subprocess.Popen(
                    self._argv(line), cwd=self.home, env=self._env(), stdout=log, stderr=log
                )
            )

    def waits(self, is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Until it is so. Raises CommandFailed where a program ends before, or it takes longer."""
        deadline = time.monotonic() + limit_s
        while not is_so():
            ended = [one.returncode for one in self._running if one.poll() is not None]
            if ended or time.monotonic() > deadline:
                said = self._log.read_text(errors="replace")[-2000:]
                why = f"ended with {ended[0]}" if ended else f"not in {limit_s:g} s"
                raise CommandFailed(f"{self.typed[-1]}: {why}\n{said}")
            time.sleep(_POLL_S)

    def leaves(self) -> None:
        """End all that runs here."""
        for one in self._running:
            one.terminate()
        for one in self._running:
            try:
                one.wait(20.0)
            except subprocess.TimeoutExpired:
                one.kill()

    @property
    def received_bytes(self) -> int:
        """By the host but from itself, since it was made, without headers up to those of TCP."""
        shown = ["ip", "-n", self.namespace, "-j", "-s", "link"]
        links = json.loads(subprocess.run(shown, check=True, capture_output=True).stdout)
        heard = [link["stats64"]["rx"] for link in links if link["ifname"] != "lo"]
        return sum(one["bytes"] - one["packets"] * _HEADER_BYTES for one in heard)

    @property
    def _log(self) -> Path:
        return self.home / "log"

    def _argv(self, line: str) -> list[str]:
        name, *words = shlex.split(line)
        return ["ip", "netns", "exec", self.namespace, *program(name, *words)]

    def _env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
        return kept | {"HEADRACE_HOME": str(self.home), "PYTHONPATH": str(self.programs)}


def at(namespace: str, work: Callable[[], T]) -> T:
    """What `work` gives in a thread of that host."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            netns.enter(namespace)
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(MOST_S)
