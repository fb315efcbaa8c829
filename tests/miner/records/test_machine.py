from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from miner.records.machine import held_up_s

DEADLINE_S = 30.0


def test_a_thread_that_shares_its_processor_is_held_up() -> None:
    here, ends, busy = {min(os.sched_getaffinity(0))}, threading.Event(), bytes(1 << 16)

    def compute() -> None:
        os.sched_setaffinity(0, here)  # of this thread alone
        while not ends.is_set():
            hashlib.sha256(busy).digest()

    threads = [threading.Thread(target=compute) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        number = threads[0].native_id
        assert number is not None
        if not Path(f"/proc/self/task/{number}/schedstat").exists():
            pytest.skip("this system does not tell")
        until_s, began_s = time.monotonic() + DEADLINE_S, held_up_s(number)
        while held_up_s(number) < began_s + 0.05:
            assert time.monotonic() < until_s, "two threads had one processor and nobody waited"
            time.sleep(0.01)
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def test_of_a_thread_that_does_not_exist_nothing_is_told() -> None:
    assert held_up_s(0) == 0.0
