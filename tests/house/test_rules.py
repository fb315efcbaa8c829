"""Five rules that keep the house in order (`docs/architecture.md`)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.house import reach, tree

#: Names of classes that may mean several things for now. This list may only shrink.
SHARED_NAMES = frozenset((Path(__file__).parent / "shared_names.txt").read_text().split())
#: Folders that are still too full.
TOO_FULL = {"benchmarks/scheduler"}
#: What is left to do. These numbers may only fall.
MOST_UNREACHED, MOST_LONG_LINES, MOST_SKIPS = 233, 3306, 227
#: Everything before this commit had long subjects.
FIRST_COMMIT_WITH_SHORT_SUBJECTS = "0f1a728"
MAX_SUBJECT = 72
THIS = Path("tests/house/test_rules.py")


def test_no_room_holds_more_files_than_it_may() -> None:
    full = {str(room): len(files) for room, files in tree.rooms().items()}
    assert {room for room, count in full.items() if count > tree.MAX_FILES} <= TOO_FULL


def test_nothing_imports_in_a_circle() -> None:
    assert tree.circles() == []


def test_a_class_name_means_one_thing() -> None:
    shared = set(tree.shared_class_names())
    assert shared - SHARED_NAMES == set(), "give the class a name of its own"
    assert SHARED_NAMES - shared == set(), "these mean one thing now: take them off the list"


def test_no_more_is_out_of_reach_of_the_programs_than_was() -> None:
    assert len(reach.unreached()) <= MOST_UNREACHED


def test_no_more_lines_are_longer_than_a_hundred_columns_than_were() -> None:
    ours = tuple(p for p in tree.tracked() if p.suffix in (".py", ".sol", ".c", ".h"))
    assert sum(tree.long_lines(ours).values()) <= MOST_LONG_LINES


def test_the_formatter_is_told_to_skip_no_more_often_than_it_was() -> None:
    skip = re.compile(r"#\s*fmt:\s*(skip|off)")
    ours = [path for path in tree.tracked() if path.suffix == ".py" and path != THIS]
    found = [str(p) for p in ours for _ in skip.findall((tree.ROOT / p).read_text())]
    assert len(found) <= MOST_SKIPS, found


def test_commits_say_what_they_do_in_one_line() -> None:
    command = ["git", "log", "--format=%s", f"{FIRST_COMMIT_WITH_SHORT_SUBJECTS}..HEAD"]
    log = subprocess.run(command, cwd=tree.ROOT, capture_output=True, text=True, check=False)
    if log.returncode:
        pytest.skip("this copy of the project has no history")
    assert [subject for subject in log.stdout.splitlines() if len(subject) > MAX_SUBJECT] == []
