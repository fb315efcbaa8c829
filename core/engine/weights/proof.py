"""Are these bytes the published tensors? Hashed by threads of their own, while others are read."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from core.engine.weights.stored import TensorHasher
from core.protocol import hashing
from core.protocol.errors import CheckFailed

#: A core hashes about as fast as two disks read, and slower than memory is copied.
_MOST_THREADS = 4
#: Blocks that wait to be hashed; more are not read before one was.
_MOST_WAITING = 16


class RootProof:
    """Holds tensors to their published roots, each in one thread.

    What is handed in must not change before `wait`.
    """

    def __init__(self) -> None:
        hashing.hash_in_c()
        count = min(_MOST_THREADS, os.cpu_count() or 1)
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix="roots") for _ in range(count)]
        self._turn = 0
        self._waiting = deque[Future[None]]()

    def begin(self, name: str, dtype: str, shape: Sequence[int], root: str) -> TensorProof:
        """What takes in the bytes of a tensor with this published root (hex), block after block."""
        self._turn = (self._turn + 1) % len(self._threads)
        thread, hasher = self._threads[self._turn], TensorHasher(dtype, shape)
        return TensorProof(name, root, hasher, lambda work: self._submit(thread, work))

    def wait(self) -> None:
        """Raises CheckFailed if any tensor so far is another than the published one."""
        while self._waiting:
            self._waiting.popleft().result()

    def _submit(self, thread: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        while len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(thread.submit(work))


class TensorProof:
    """One tensor on its way to its root."""

    def __init__(
        self,
        name: str,
        root: str,
        hasher: TensorHasher,
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        self._name, self._root, self._hasher, self._submit = name, root, hasher, submit

    def take(self, data: memoryview) -> None:
        """The next bytes."""
        self._submit(lambda: self._hasher.update(data))

    def end(self) -> None:
        """These were all."""
        self._submit(lambda: check_root(self._name, self._root, self._hasher.root()))


def check_root(name: str, root: str, found: bytes) -> None:
    """Raise CheckFailed for a tensor of another root than was published (hex)."""
    if found.hex() != root:
        raise CheckFailed(
            f"{name} is not the published tensor",
            f"its root is 0x{found.hex()}, the model's manifest says 0x{root}",
            state="nothing of it is used",
            next_step="`models verify NAME` finds all such; `models pull NAME` fetches them again",
        )
