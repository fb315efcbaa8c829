"""Which processes and ports has a devnet left behind?"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

from devnet.processes import members_of_session

_LISTEN = "0A"


def of_sessions(sessions: Iterable[int]) -> list[int]:
    """Processes that still run in these sessions."""
    return [pid for session in sessions for pid in members_of_session(session)]


def mentioning(text: str) -> list[int]:
    """Processes with this text in their environment, which children inherit in any session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if text.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def listening_ports(pids: Iterable[int]) -> set[int]:
    """TCP ports of 127.0.0.1 and of all addresses on which these processes listen."""
    sockets = set()
    for pid in pids:
        try:
            for link in Path(f"/proc/{pid}/fd").iterdir():
                sockets.add(link.readlink().name)
        except OSError:
            continue
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def nobody_listens(ports: Iterable[int]) -> None:
    """Fail when one of these ports is still taken."""
    for port in ports:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"port {port} still answers"
