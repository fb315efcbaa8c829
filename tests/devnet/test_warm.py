"""Programs forked from the warm interpreter are as good as executed ones."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from core.runtime.folders import Folders
from devnet.processes import Processes, clean_environ, members_of_session
from devnet.warm import WarmStart
from tests.swarm.traces import mentioning

DEADLINE_S = 60.0


@pytest_asyncio.fixture
async def warm() -> AsyncIterator[WarmStart]:
    started = await WarmStart.begin(clean_environ())
    yield started
    await started.close()


async def run(warm: WarmStart, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """A command of `client`, at home in `folder`."""
    environ = {**clean_environ(), "HEADRACE_HOME": str(folder)}
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        started = await warm.start(
            "client.cli", arguments, environ, stdout.fileno(), stderr.fileno()
        )
        async with asyncio.timeout(DEADLINE_S):
            code = await started.ended
    return code, out.read_text(), err.read_text()


async def test_a_program_has_its_own_arguments_environment_streams_and_exit_code(
    warm: WarmStart, tmp_path: Path
) -> None:
    names = ("one", "two")
    for name in names:
        (tmp_path / name).mkdir()
    done = await asyncio.gather(*(run(warm, tmp_path / n, "config", "path") for n in names))
    for name, (code, out, _) in zip(names, done, strict=True):
        assert code == 0
        assert str(Folders.find({"HEADRACE_HOME": str(tmp_path / name)}).config) in out
    code, out, err = await run(warm, tmp_path, "no-such-command")
    assert (code, out) == (2, "")
    assert "no-such-command" in err


async def test_a_killed_program_ends_with_its_signal_and_leads_its_own_session(
    warm: WarmStart, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("wb") as log:
        started = await warm.start(
            "devnet.faulty_miner", ["--help"], clean_environ(), log.fileno(), log.fileno()
        )
        os.kill(started.pid, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            assert await started.ended == -signal.SIGKILL
    assert members_of_session(started.pid) == []
    assert (await run(warm, tmp_path, "--version"))[0] == 0


async def test_a_bug_in_a_program_is_told_and_ends_only_that_program(
    warm: WarmStart, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        started = await warm.start(
            "devnet.no_such_module", [], clean_environ(), output.fileno(), output.fileno()
        )
        async with asyncio.timeout(DEADLINE_S):
            assert await started.ended == 70
    assert "ModuleNotFoundError" in log.read_text()
    assert (await run(warm, tmp_path, "--version"))[0] == 0


async def test_a_dead_interpreter_is_said_and_not_waited_for(tmp_path: Path) -> None:
    warm = await WarmStart.begin(clean_environ())
    os.kill(warm._process.pid, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ConnectionError, match="has ended"):
            await run(warm, tmp_path, "--version")
        await warm.close()


async def test_a_warm_command_and_a_cold_one_say_the_same(tmp_path: Path) -> None:
    from devnet.network import program

    processes = Processes(tmp_path / "list", tmp_path)
    environ = {"HEADRACE_HOME": str(tmp_path)}
    command = program("client", "config", "show", "--json")
    cold = await processes.run(command, environ)
    await processes.warm_up(environ)
    try:
        assert await processes.run(command, environ) == cold
        assert cold[0] == 0
    finally:
        await processes.stop_all()


async def test_a_program_that_nobody_waits_for_any_more_does_not_run_on(tmp_path: Path) -> None:
    environ = {**clean_environ(), "HEADRACE_HOME": str(tmp_path)}
    with (tmp_path / "log").open("wb") as log:
        for patience_s in (0.0, 5.0, 9.0):  # while it imports, or when it is ready
            warm = await WarmStart.begin(environ)
            asking = asyncio.create_task(
                warm.start("devnet.cli", ["demo"], environ, log.fileno(), log.fileno())
            )
            await asyncio.sleep(0)
            done, _ = await asyncio.wait([asking], timeout=patience_s)
            for task in done:
                os.kill(task.result().pid, signal.SIGKILL)
            asking.cancel()
            await warm.close()
    async with asyncio.timeout(DEADLINE_S):
        while mentioning(str(tmp_path)):
            await asyncio.sleep(0.05)
