"""Are these bytes the published tensor? Hashed by a thread of its own, while others are read."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from core.engine.weights.contents import TensorFact
from core.engine.weights.stored import TensorHasher
from core.protocol import hashing
from core.protocol.errors import CheckFailed

#: Blocks that wait to be hashed; more are not read before one was.
_MOST_WAITING = 8


class RootProof:
    """Holds tensors to their published roots. What is handed in must not change before `wait`."""

    def __init__(self) -> None:
        hashing.hash_in_c()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="roots")
        self._waiting = deque[Future[None]]()

    def add(self, name: str, fact: TensorFact, data: memoryview) -> None:
        """All bytes of a tensor."""
        hasher = TensorHasher(fact.dtype, fact.shape)
        self.block(hasher, data)
        self.end(name, fact, hasher)

    def block(self, hasher: TensorHasher, data: memoryview) -> None:
        """The next bytes of a tensor."""
        self._submit(lambda: hasher.update(data))

    def end(self, name: str, fact: TensorFact, hasher: TensorHasher) -> None:
        """A tensor is complete."""
        self._submit(lambda: check_root(name, fact, hasher.root()))

    def wait(self) -> None:
        """Raises CheckFailed if any tensor so far is another than the published one."""
        while self._waiting:
            self._waiting.popleft().result()

    def _submit(self, work: object) -> None:
        while len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(work))  # type: ignore[arg-type]


def check_root(name: str, fact: TensorFact, found: bytes) -> None:
    """Raise CheckFailed for a tensor of another root than was published."""
    if found.hex() != fact.root:
        raise CheckFailed(
            f"{name} is not the published tensor",
            f"its root is 0x{found.hex()}, the model's manifest says 0x{fact.root}",
            state="nothing of it is used",
            next_step="delete it and pull it again: `miner models verify NAME` finds all such",
        )
