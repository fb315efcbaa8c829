"""How long does a page of the dashboard take to load in a browser on this machine?"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.table import Row
from tests.browser.driving import drive, missing
from tests.browser.test_pages import PATHS
from tests.client.dashboard.world import filled_world

REACH_MS, VISITS = 200.0, 5
#: A navigation that asks for next to nothing: what the browser itself takes.
NOTHING = "/health"
SCRIPT = Path(__file__).with_name("page_loads.mjs")
WITHIN_S = 300.0
QUICK = {"VISITS": 1, "PATHS": PATHS[:1]}


def _measure() -> dict[str, float]:
    """Path → milliseconds."""
    with (
        tempfile.TemporaryDirectory(prefix="pages-bench-") as folder,
        filled_world(Path(folder)) as world,
    ):
        told = drive(
            SCRIPT,
            WITHIN_S,
            login=world.login_url,
            base=world.url,
            paths=[NOTHING, *PATHS],
            visits=VISITS,
        )
    return {str(path): float(took) for path, took in told["pages"].items()}


def rows() -> list[Row]:
    """None where there is no Chromium or node to load a page with."""
    if why := missing():
        print(f"no page is loaded: {why}", file=sys.stderr)
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
