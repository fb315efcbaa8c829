"""How long does a page of the dashboard take to load in a browser on this machine?"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.table import Row
from tests.browser.test_pages import PATHS
from tests.client.dashboard.world import PagesWorld, write_chain

REACH_MS, VISITS = 200.0, 5
#: A navigation that asks for next to nothing: what the browser itself takes.
NOTHING = "/health"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
SCRIPT = Path(__file__).with_name("page_loads.mjs")
ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 300.0


def _loads(world: PagesWorld) -> dict[str, float]:
    """Path → milliseconds."""
    asked = {
        "login": world.login_url, "base": world.url, "paths": [NOTHING, *PATHS], "visits": VISITS,
    }  # fmt: skip
    command = ["node", str(SCRIPT), json.dumps(asked)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=True
    )
    told = json.loads(done.stdout.splitlines()[-1])
    if "error" in told:
        raise RuntimeError(told["error"])
    return {str(path): float(took) for path, took in told["pages"].items()}


def _measure() -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory(prefix="pages-bench-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        world = PagesWorld(Path(folder))
        write_chain(patch, world.chain)
        world.start()
        try:
            world.fill()
            return _loads(world)
        finally:
            world.stop()


def rows() -> list[Row]:
    """None where there is no Chromium or node to load a page with."""
    if shutil.which("node") is None or not Path(CHROMIUM).exists():
        print(f"no page is loaded: node or {CHROMIUM} is missing", file=sys.stderr)
        return []
    took = _measure()
    empty_ms = took.pop(NOTHING)
    slowest = max(took, key=lambda path: took[path])
    name = slowest.split("?")[0][:24]
    return [
        Row(
            f"slowest of {len(took)} pages, loaded in Chromium",
            f"<= {REACH_MS:g} ms",
            f"{took[slowest]:.0f} ms ({name})",
            f"{empty_ms:.0f} ms for an empty answer",
            "",
            took[slowest] <= REACH_MS,
        )
    ]
