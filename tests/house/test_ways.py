"""The ways through the code that `docs/architecture.md` lists lead through files that are there."""

from __future__ import annotations

import pytest

from tests.house.tree import ROOT, imports_of, module_of
from tests.house.ways import MOST, ways

FEWEST = 20
FIRST = "From a prompt to a token"


def test_every_way_is_on_the_page():
    assert list(ways()) == list(MOST)


@pytest.mark.parametrize("title", MOST)
def test_every_file_of_a_way_is_there(title: str):
    gone = [str(path) for path in ways()[title] if not (ROOT / path).is_file()]
    assert not gone, gone


@pytest.mark.parametrize("title", MOST)
def test_a_way_is_neither_too_short_nor_too_long(title: str):
    assert FEWEST <= len(ways()[title]) <= MOST[title]


@pytest.mark.parametrize("title", [title for title in MOST if title != FIRST])
def test_every_file_of_a_way_hangs_together_with_another_one(title: str):
    """By an import in either direction; contracts and C are not looked into."""
    imported = {
        module_of(path): set(imports_of(path)) for path in ways()[title] if path.suffix == ".py"
    }
    alone = [
        name
        for name, theirs in imported.items()
        if not any(
            other in theirs or name in imported[other] for other in imported if other != name
        )
    ]
    assert not alone, alone
