"""Does the quick start work as it is printed?"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from core.runtime.folders import Folders
from devnet.processes import clean_environ
from tests.docs.conftest import ROOT
from tests.docs.shell import blocks
from tests.swarm.traces import listening_ports, mentioning

PAGE = ROOT / "docs" / "quickstart.md"
WITHIN_S = 600  # a minute on a machine of its own


@pytest.mark.swarm
@pytest.mark.model
@pytest.mark.timeout(WITHIN_S + 60)
def test_every_command_of_the_quick_start_does_what_the_page_says(tmp_path: Path) -> None:
    """All blocks but the first, in order, in one shell; the first is what prepared these tests."""
    first, *others = blocks(PAGE.read_text(encoding="utf-8"))
    assert first.splitlines() == ["make ready", "source .venv/bin/activate"]
    script = tmp_path / "quickstart.sh"
    script.write_text("\n".join(f"{block}\necho '=== {n}'" for n, block in enumerate(others)))
    work = tmp_path / "work"
    work.mkdir()
    environ = {
        **clean_environ(),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(Folders.find({}).cache.parent),  # the model lies there
        "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
    }
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", script],
            cwd=work,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
    finally:
        left = mentioning(str(tmp_path))
        ports = listening_ports(left)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert done.returncode == 0, done.stdout[-6000:]
    said = re.split(r"=== \d+\n", done.stdout)
    network, money, chat, batch, checked, openai, stopped, _ = said
    assert re.search(r"^gateway +http://127\.0\.0\.1:\d+", network, re.MULTILINE)
    assert re.search(r"^wallet +100.00 usd", money, re.MULTILINE)
    assert re.search(r"24 tokens · .* · [\d.]+usd · 0x.* → 0x.* → 0x.* · job_", chat)
    assert '"custom_id": "a"' in batch and '"custom_id": "b"' in batch and "paid" in batch
    assert "on chain      settled" in checked
    assert re.search(r"^0\.\d+usd mnr_\w+,mnr_\w+,mnr_\w+$", openai, re.MULTILINE)
    assert re.search(r"^purged +yes", stopped, re.MULTILINE)
    assert not left and not ports
    assert not (tmp_path / "headrace-try" / "state" / "devnet").exists()
