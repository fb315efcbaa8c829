"""A gateway with pages for a whole module, and a headless Chromium that is told what to do and tells what it saw."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.dashboard.world import PagesWorld, WrittenChain, write_chain

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")

Drive = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def drive() -> Drive:
    """Run one of the scripts here with what it is asked; what it told."""
    node = shutil.which("node")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM}: install it, or name it with CHROMIUM")
    if node is None:
        pytest.skip("node is not installed")
    if not (ROOT / "node_modules" / "playwright-core").is_dir():
        pytest.skip("playwright-core is not installed: run `npm ci`")

    def run(script: str, within_s: float = 400, **asked: Any) -> dict[str, Any]:
        done = subprocess.run(
            [node, str(HERE / f"{script}.mjs"), json.dumps(asked)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        assert done.stdout, done.stderr[-2000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert "error" not in found, found["error"]
        return found

    return run


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """A gateway over the toy, a matcher's answers and a written chain, with something to see on every page."""
    world = PagesWorld(tmp_path_factory.mktemp("pages"))
    with pytest.MonkeyPatch.context() as patch:
        chain: WrittenChain = world.chain
        write_chain(patch, chain)
        world.start()
        try:
            world.fill()
            http = world.client()
            world.until(
                lambda: http.get("/api/explorer").json()["total_events"] == len(chain.past), 60
            )
            http.close()
            yield world
        finally:
            world.stop()
