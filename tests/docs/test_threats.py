"""Does every line of the threat model name a test that is there, or where it says that none is?"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/threats.md").read_text()


def test_each_line_of_what_parties_can_do_names_a_test_or_where_it_is_admitted() -> None:
    what_they_can_do = PAGE.split("## Who can read")[0]
    lines = [line for line in what_they_can_do.splitlines() if line.startswith("| ")]
    lines = [line for line in lines if not line.startswith(("| party", "| parties"))]
    assert len(lines) > 20
    for line in lines:
        shown = line.rstrip("| ").rpartition("|")[2]
        tests = re.findall(r"`([\w/.]+\.(?:py|sol))`", shown)
        assert tests or "trust.md#" in shown, line
        assert all((ROOT / test).is_file() for test in tests), line
