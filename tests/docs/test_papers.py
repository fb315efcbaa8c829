"""Does the map from papers to code name things that are there?"""

from __future__ import annotations

import pytest
from sitegen.papers import papers, resolve

from tests.docs.conftest import Site

NAMES = [(p.name, e.where, name) for p in papers() for e in p.entries for name in e.code]


def test_all_five_papers_are_mapped_with_places_and_code(site: Site) -> None:
    found = {paper.name: paper for paper in papers()}
    assert set(found) == {"DeServe", "Parallax", "Helix", "HyperCluster", "LLMFabric"}
    text = site.text("papers.html")
    for paper in found.values():
        assert len(paper.entries) >= 6 and paper.title in text
        for entry in paper.entries:
            assert entry.where and entry.what and entry.code
            assert all(name in text for name in entry.code)


@pytest.mark.parametrize("paper", sorted({name for name, _, _ in NAMES}))
def test_every_name_of_the_map_exists(paper: str) -> None:
    for name in (name for of, _, name in NAMES if of == paper):
        assert resolve(name) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        "scheduler.nowhere.route",
        "scheduler.routing.parallax_route.nothing",
        "contracts/src/None.sol",
        "contracts/src/Escrow.sol#fly",
    ],
)
def test_a_name_that_is_gone_is_noticed(wrong: str) -> None:
    with pytest.raises(LookupError):
        resolve(wrong)
