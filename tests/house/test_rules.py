"""Five rules that keep the house in order (`docs/architecture.md`)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.house import reach, tree

#: Everything before this commit had long subjects.
FIRST_COMMIT_WITH_SHORT_SUBJECTS = "0f1a728"
MAX_SUBJECT = 72
THIS = Path("tests/house/test_rules.py")


def test_no_room_holds_more_files_than_it_may() -> None:
    full = {str(room): len(files) for room, files in tree.rooms().items()}
    assert {room: count for room, count in full.items() if count > tree.MAX_FILES} == {}


def test_nothing_imports_in_a_circle() -> None:
    assert tree.circles() == []


def test_a_class_name_means_one_thing() -> None:
    assert tree.shared_class_names() == {}


def test_the_programs_reach_every_definition() -> None:
    assert reach.unreached() == []


def test_no_line_is_longer_than_a_hundred_columns() -> None:
    ours = tuple(p for p in tree.tracked() if p.suffix in (".py", ".sol", ".c", ".h"))
    assert tree.long_lines(ours) == {}


def test_the_formatter_skips_nothing() -> None:
    skip = re.compile(r"#\s*fmt:\s*(skip|off)")
    ours = [path for path in tree.tracked() if path.suffix == ".py" and path != THIS]
    found = [str(p) for p in ours for _ in skip.findall((tree.ROOT / p).read_text())]
    assert found == []


def test_commits_say_what_they_do_in_one_line() -> None:
    command = ["git", "log", "--format=%s", f"{FIRST_COMMIT_WITH_SHORT_SUBJECTS}..HEAD"]
    log = subprocess.run(command, cwd=tree.ROOT, capture_output=True, text=True, check=False)
    if log.returncode:
        pytest.skip("this copy of the project has no history")
    assert [subject for subject in log.stdout.splitlines() if len(subject) > MAX_SUBJECT] == []
