"""The documentation can be searched where it lies: opened from the disk, without a server."""

from __future__ import annotations

from tests.browser.conftest import Drive
from tests.docs.conftest import Site, site

__all__ = ["site"]  # the fixture, which builds the pages once for all workers


def test_the_site_is_searched_from_the_disk(site: Site, drive: Drive) -> None:
    url = site.folder.joinpath("index.html").as_uri()
    found = drive("docs", url=url, words="E-FUNDS-01")
    assert found["told"] == {"console": [], "foreign": [], "failed": []}
    assert any("E-FUNDS-01" in title for title in found["titles"])
    assert found["opened"].startswith(site.folder.as_uri()) and found["heading"]
