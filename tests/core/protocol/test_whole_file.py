"""Who reads a file while it is replaced finds one of the two."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.protocol import whole_file
from core.protocol.whole_file import write_whole


@pytest.mark.parametrize("synced", [False, True])
def test_what_was_there_stays_until_all_of_the_new_is(
    synced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept.json"
    write_whole(file, b"old", synced=synced)
    replace, seen = Path.replace, []

    def look(draft: Path, target: Path) -> Path:
        seen.append((target.read_bytes(), draft.read_bytes()))
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", look)
    write_whole(file, b"new", synced=synced)
    assert seen == [(b"old", b"new")]
    assert file.read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


def test_a_disk_is_waited_for_before_the_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(whole_file.os, "fsync", lambda _: order.append("synced"))
    monkeypatch.setattr(
        Path, "replace", lambda draft, target: order.append("replaced") or replace(draft, target)
    )
    write_whole(tmp_path / "a", b"x")
    write_whole(tmp_path / "b", b"x", synced=True)
    assert order == ["replaced", "synced", "replaced"]
