"""Networks of the kernel's own, on one machine: a hub, and spokes that reach only the hub.

Spokes have globally routable numbers, so that libp2p takes them for the public network; no packet
leaves the machine. As an internet the hub passes packets on between spokes, and is the router of
homes, which have private addresses: what they begin goes out under the hub's address, and nothing
that others begin comes in.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HUB = "hub"
HUB_ADDRESS = "45.77.0.1"
_ids = itertools.count()


class Unavailable(Exception):
    """This machine lets nobody make network namespaces, and why."""


class Network:
    """Namespaces by name: `HUB` and the spokes, of which some are homes behind the hub's router."""

    def __init__(
        self, spokes: tuple[str, ...], homes: tuple[str, ...] = (), *, is_internet: bool = False
    ) -> None:
        self._homes, self._is_internet = homes, is_internet
        prefix = f"hr{os.getpid()}-{next(_ids)}"
        self.spokes = spokes
        self.namespaces = {name: f"{prefix}-{name}" for name in (HUB, *spokes)}
        self._cables = {name: f"v{os.getpid()}{next(_ids)}" for name in spokes}

    def address(self, spoke: str) -> str:
        """Where a spoke listens: nobody but the hub finds it, or in an internet everybody."""
        net = "10.77" if spoke in self._homes else "45.77"
        return f"{net}.{self.spokes.index(spoke) + 1}.2"

    def make(self) -> None:
        """Raises Unavailable."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise Unavailable("network namespaces need root and iproute2")
        try:
            for namespace in self.namespaces.values():
                _ip("netns", "add", namespace)
                _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", self.namespaces[HUB], "addr", "add", f"{HUB_ADDRESS}/32", "dev", "lo")
            for spoke, cable in self._cables.items():
                here, hub, address = (
                    self.namespaces[spoke],
                    self.namespaces[HUB],
                    self.address(spoke),
                )
                peer = ("peer", "name", f"{cable}h", "netns", hub)
                _ip("link", "add", f"{cable}s", "netns", here, "type", "veth", *peer)
                _ip("-n", here, "addr", "add", f"{address}/32", "dev", f"{cable}s")
                _ip("-n", here, "link", "set", f"{cable}s", "up")
                _ip("-n", hub, "link", "set", f"{cable}h", "up")
                _ip("-n", here, "route", "add", HUB_ADDRESS, "dev", f"{cable}s")
                _ip("-n", hub, "route", "add", address, "dev", f"{cable}h", "src", HUB_ADDRESS)
                if self._is_internet:
                    _ip("-n", here, "route", "add", "default", "via", HUB_ADDRESS)
            if self._is_internet:
                self._run(HUB, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
            if self._homes:
                self._be_router()
        except FileNotFoundError as error:
            self.remove()
            raise Unavailable(f"{error.filename} is not installed") from None
        except subprocess.CalledProcessError as error:
            self.remove()
            raise Unavailable(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from None

    def _be_router(self) -> None:
        """The hub gives homes its own address, and keeps from them what they did not begin."""
        sources = ", ".join(self.address(home) for home in self._homes)
        rules = f"""table ip home {{
            chain out {{
                type nat hook postrouting priority srcnat;
                ip saddr {{ {sources} }} masquerade
            }}
            chain through {{
                type filter hook forward priority filter;
                ip daddr {{ {sources} }} ct state new drop
            }}
        }}"""
        self._run(HUB, "nft", "-f", "-", given=rules)

    def _run(self, name: str, *argv: str, given: str | None = None) -> None:
        inside = ["ip", "netns", "exec", self.namespaces[name], *argv]
        if shutil.which(argv[0]) is None:
            raise FileNotFoundError(2, "no such program", argv[0])
        subprocess.run(inside, check=True, capture_output=True, text=True, input=given)

    def remove(self) -> None:
        """With all cables. Processes inside keep theirs until they end."""
        for namespace in self.namespaces.values():
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


@contextmanager
def network(*spokes: str) -> Iterator[Network]:
    """A hub with these spokes, removed afterwards. Raises Unavailable."""
    yield from _made(Network(spokes))


@contextmanager
def internet(*hosts: str, homes: tuple[str, ...] = ()) -> Iterator[Network]:
    """Hosts that reach each other, and homes behind a router. Raises Unavailable."""
    yield from _made(Network((*hosts, *homes), homes, is_internet=True))


def _made(made: Network) -> Iterator[Network]:
    made.make()
    try:
        yield made
    finally:
        made.remove()


def enter(namespace: str) -> None:
    """Move this thread, and every process it starts, into a namespace for good. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{namespace}").open() as file:
        if libc.setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
