"""`devnet demo --story online` asks a gateway and finds what it was charged on chain."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from devnet.network import program
from devnet.processes import clean_environ
from devnet.story import QUESTIONS


def left_in(folder: Path) -> list[Path]:
    return list(folder.glob("headrace-demo-*"))


@pytest.mark.swarm
@pytest.mark.model
@pytest.mark.timeout(300)
async def test_the_online_story_is_charged_what_the_chain_says(tmp_path: Path) -> None:
    demo = await asyncio.create_subprocess_exec(
        *program("devnet", "demo", "--story", "online"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**clean_environ(), "TMPDIR": str(tmp_path)},
    )
    told = (await demo.communicate())[0].decode()
    assert demo.returncode == 0, told[-3000:]
    assert all(f"asked     {question}" in told for question in QUESTIONS)
    assert told.count("rcpt_") >= len(QUESTIONS)
    assert "by the receipts, and by the chain" in told
    assert not left_in(tmp_path), "and nothing is left"
