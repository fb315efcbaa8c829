"""Which files does each way through the code cross, as `docs/architecture.md` lists them?"""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.tree import ROOT

PAGE = ROOT / "docs" / "architecture.md"
#: Heading of a way on the page → the most files that it may cross.
MOST = {
    "From a prompt to a token": 60,
    "From a receipt to a slash": 60,
    "From a stake to SERVING": 60,
}
_FILE = re.compile(r"`((?:client|core|contracts|devnet|matcher|miner|scheduler)/[\w./]+\.\w+)`")


def ways() -> dict[str, list[Path]]:
    """Way → its files in the order in which it first reaches them."""
    found = {}
    for section in PAGE.read_text().split("\n### ")[1:]:
        title, _, body = section.partition("\n")
        if title in MOST:
            body = body.partition("\n## ")[0]
            found[title] = [Path(name) for name in dict.fromkeys(_FILE.findall(body))]
    return found
