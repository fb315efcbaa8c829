"""Does Ctrl-C in the middle of the demonstration leave anything behind?"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from devnet.network import program
from devnet.processes import clean_environ, members_of_session
from tests.swarm.traces import listening_ports, mentioning
from tests.swarm.world import nothing_left, until

#: Programs that run at the interruption: the chain alone; the matcher too; a miner beside them.
MOMENTS = (1, 2, 3)


def started(folder: Path) -> list[str]:
    """Names of the programs that the demonstration has noted down."""
    for file in folder.glob("headrace-demo-*/processes.json"):
        try:
            return [entry["name"] for entry in json.loads(file.read_text())]
        except ValueError:
            return []  # being written
    return []


@pytest.mark.swarm
@pytest.mark.model
@pytest.mark.timeout(300)
async def test_an_interrupted_demo_leaves_no_process_and_no_port(tmp_path: Path) -> None:
    moment, later_s = random.choice(MOMENTS), random.uniform(0.0, 2.0)
    print(f"interrupted {later_s:.2f} s after {moment} programs were started")
    demo = await asyncio.create_subprocess_exec(
        *program("devnet", "demo"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**clean_environ(), "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    said = asyncio.create_task(demo.communicate())
    try:

        async def far_enough() -> bool:
            assert demo.returncode is None, await said
            begun = len(started(tmp_path)) >= moment
            return begun and bool(listening_ports(mentioning(str(tmp_path))))

        await until(far_enough, within_s=150, what=f"{moment} programs run and one listens")
        await asyncio.sleep(later_s)
        processes = mentioning(str(tmp_path))
        ports = listening_ports(processes)
        assert len(processes) > moment
        assert ports
        os.kill(demo.pid, signal.SIGINT)
        began = time.monotonic()
        done, _ = await asyncio.wait([said], timeout=60)
        assert done, "the demo does not end"
        print(f"ended {time.monotonic() - began:.1f} s after the interruption")
    finally:
        for pid in {
            *members_of_session(demo.pid),
            *(() if said.done() else mentioning(str(tmp_path))),
        }:
            os.kill(pid, signal.SIGKILL)
        await said
    assert demo.returncode == 130, said.result()[0].decode()[-2000:]
    await nothing_left(str(tmp_path), ports)
