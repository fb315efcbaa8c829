"""Is every page sound in a real browser: no console messages, no foreign requests, accessible?"""

from __future__ import annotations

from typing import Any

import pytest

from core.protocol import ids
from tests.browser.conftest import Drive
from tests.client.dashboard.world import (
    FOREIGN_JOB,
    GAME_CASE,
    JOB,
    JURY_CASE,
    MINERS,
    MODEL_ID,
    OWNER,
    PAYER,
    PagesWorld,
    tx_of,
)

PATHS = (
    "/",
    "/models",
    f"/models/{MODEL_ID}",
    "/chat",
    "/jobs",
    f"/jobs/{ids.full(ids.Kind.JOB, JOB)}",
    f"/jobs/{FOREIGN_JOB}",
    f"/receipts/rcpt_{1:032x}",
    "/keys",
    "/wallet",
    "/network",
    "/history",
    f"/miners/{ids.full(ids.Kind.MINER, MINERS[2])}",
    f"/earnings?owner={OWNER}",
    "/planner",
    "/disputes",
    f"/disputes/{JURY_CASE}",
    f"/disputes/{GAME_CASE}",
    "/explorer",
    f"/addresses/{PAYER}",
    f"/transactions/{tx_of(12)}",
    "/blocks/12",
    "/connect",
)


@pytest.mark.parametrize("part", range(3))
def test_every_page_is_sound_in_both_themes_and_at_both_widths(
    pages: PagesWorld, drive: Drive, part: int
) -> None:
    found = drive(
        "pages", logins=[pages.login_url, pages.login_url], base=pages.url, paths=PATHS[part::3]
    )
    wrong = [_wrong(page) for page in found["pages"]]
    assert [page for page in wrong if len(page) > 1] == []
    assert len(found["pages"]) == 2 * len(PATHS[part::3])


def _wrong(page: dict[str, Any]) -> dict[str, Any]:
    """What of a page is not as it must be, beside its path."""
    kinds = ("console", "foreign", "failed", "violations", "missed", "wide")
    found = {kind: page[kind] for kind in kinds if page[kind]}
    if page["overflow"] > 0:
        found["overflow"] = page["overflow"]
    return {"path": page["path"], **found}


def test_without_a_session_pages_are_read_only_and_just_as_sound(
    pages: PagesWorld, drive: Drive
) -> None:
    paths = ["/", "/keys", "/jobs", "/chat", "/planner"]
    found = drive("pages", base=pages.url, paths=paths, themes=["light"], axe=False)
    assert [page for page in map(_wrong, found["pages"]) if len(page) > 1] == []
