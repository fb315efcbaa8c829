"""What does this machine have, without loading a tensor library?"""

from __future__ import annotations

import os
import time

from core.runtime.settings import Settings

_COPY_BYTES = 64 * 2**20
_ROUNDS = 3


def memory_limit_bytes(settings: Settings) -> int:
    """What the owner lets a miner use: `miner.memory_limit`, else half of the machine's memory."""
    if settings.miner.memory_limit_bytes:
        return settings.miner.memory_limit_bytes
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def held_up_s(thread: int) -> float:
    """Seconds that a thread, by its native id, was ready without a processor; 0 if untold."""
    try:  # a Path takes thrice as long, and every ping asks
        file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
    except OSError:
        return 0.0
    try:
        return int(os.read(file, 128).split()[1]) / 1e9
    finally:
        os.close(file)


def copy_bandwidth_mb_s() -> int:
    """Megabytes per second at which memory is copied, the best of a few tries."""
    source, target = bytearray(_COPY_BYTES), bytearray(_COPY_BYTES)
    best_s = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        target[:] = source
        best_s = min(best_s, time.perf_counter() - started)
    return int(_COPY_BYTES / best_s / 1e6)
