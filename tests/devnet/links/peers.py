"""Programs at the ends of a link, with blocking sockets in threads: the link decides the time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Sink:
    """Accepts connections and keeps what comes and when; `reply` answers each piece."""

    def __init__(self, *, reply: bool = False, reads: bool = True) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.connections: list[socket.socket] = []
        self.accepted_at: list[float] = []
        self.ends: list[str] = []
        self._reply, self._reads = reply, reads
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def received(self) -> bytes:
        return b"".join(piece for _, piece in list(self.pieces))

    def close(self) -> None:
        # close alone leaves a port open that a thread waits at
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self.connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.accepted_at.append(time.monotonic())
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.append(connection)
            if self._reads:
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(1 << 20):
                self.pieces.append((time.monotonic(), data))
                if self._reply:
                    connection.sendall(data)
            self.ends.append("eof")
        except OSError as error:
            self.ends.append(type(error).__name__)


@contextmanager
def sink(*, reply: bool = False, reads: bool = True) -> Iterator[Sink]:
    made = Sink(reply=reply, reads=reads)
    try:
        yield made
    finally:
        made.close()


def dial(endpoint: str, timeout_s: float = 30.0) -> socket.socket:
    host, _, port = endpoint.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def read(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            break
        found += piece
    return found


def until(
    is_so: Callable[[], bool], limit_s: float = 30.0, told: Callable[[], object] | None = None
) -> None:
    """Wait for something that another thread brings about. What is `told` stands in the failure."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() >= deadline:
            raise AssertionError(f"it never came about: {told() if told else ''}")
        time.sleep(0.005)
