"""Does a table that misses a row fail, and say what took the time?"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks import spied, table
from benchmarks.table import Row

GOOD = Row("quick", "≥ 1", "2", "1", "3", True)
BAD = Row("slow", "≥ 1", "0.5", "1", "3", False)


def _parts(monkeypatch: pytest.MonkeyPatch, **rows: list[Row]) -> None:
    for name, found in rows.items():
        module = ModuleType(f"pretended.{name}")
        module.rows = lambda found=found: found  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_only_parts_with_a_row_that_is_not_reached_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _parts(monkeypatch, one=[GOOD], two=[GOOD, BAD])
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(
        table, "profile", lambda *which: asked.append(which) or ["stage: 3 s, 60% of all"]
    )
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert table.run("pretended", ("one", "two")) == 1
    printed = capsys.readouterr().out
    assert printed.count("NOT REACHED") == 1
    assert printed.endswith("\nwhat took the time in two:\nstage: 3 s, 60% of all\n")

    monkeypatch.setattr(sys, "argv", ["benchmarks", "--json"])
    assert table.run("pretended", ("one", "two")) == 1
    first, second, third = json.loads(capsys.readouterr().out)
    assert set(first) == {"item", "reach", "ours", "peer", "limit", "reached"} == set(second)
    assert third["profile"] == ["stage: 3 s, 60% of all"] and third["reached"] is False
    assert asked == [("pretended", "two")] * 2

    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "two", "--no-profile"])
    assert table.run("pretended", ("one", "two")) == 1
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "one"])
    assert table.run("pretended", ("one", "two")) == 0
    assert len(asked) == 2 and "what took" not in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [False, True])
def test_rows_are_printed_before_it_is_looked_where_time_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """Which takes as long again: who does not wait for it has the rows."""
    _parts(monkeypatch, two=[GOOD, BAD])
    before: list[str] = []

    def interrupted(*_: str) -> list[str]:
        printed = capsys.readouterr()
        before.append(printed.err if as_json else printed.out)
        raise KeyboardInterrupt

    monkeypatch.setattr(table, "profile", interrupted)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *["--json"] * as_json])
    with pytest.raises(KeyboardInterrupt):
        table.run("pretended", ("two",))
    (printed,) = before
    assert "quick" in printed and printed.count("NOT REACHED") == 1


def test_minutes_are_those_of_parts_that_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _parts(monkeypatch, quick=[GOOD], search=[])
    search = sys.modules["pretended.search"]
    search.MINUTES = 1.0  # type: ignore[attr-defined]
    rows = lambda: [replace(GOOD, ours=f"{search.MINUTES} min")]  # noqa: E731
    search.rows = rows  # type: ignore[attr-defined]
    for arguments, ours in (([], "1.0 min"), (["--minutes", "30"], "30.0 min")):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        assert table.run("pretended", ("quick", "search")) == 0
        assert ours in capsys.readouterr().out


PART = '''
import subprocess, sys, time
from benchmarks.table import Row
WORK = """
import time
def grind():
    end = time.process_time() + 1.5
    while time.process_time() < end: pass
grind()
"""
def rows():
    subprocess.run([sys.executable, "-c", WORK], check=True)
    return [Row("slow", "≥ 1", "0.5", "1", "3", False)]
'''
MAIN = """
import sys
from benchmarks.table import run
sys.exit(run("pretended_package", ("part",)))
"""


def test_the_profile_of_a_part_names_the_function_of_a_child_that_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pretended_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text(PART)
    (package / "__main__.py").write_text(MAIN)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(spied.__file__).parent.parent}")
    lines = spied.profile("pretended_package", "part")
    if "permission" in lines[0].lower():
        pytest.skip(lines[0])
    assert any("grind" in line for line in lines), lines


def test_stacks_are_summed_by_process_and_innermost_function() -> None:
    stage = 'process 1:"python -m bench";process 7:"/env/bin/python -m rig.stage'
    stacks = f"""a line of another kind
{stage}";thread (0x1): "compute";step (stage.py);rows (native.py) 60
{stage}";thread (0x2): "MainThread";read (loop.py) 20
process 1:"python -m bench";process 8:"/env/bin/python -c import sign
sign.all()";thread (0x3): "MainThread";check (sign.py) 20
"""
    assert spied.summary(stacks) == [
        "process 7 (python -m rig.stage): 4 s, 80% of all",
        "  75.0%  rows (native.py)",
        "  25.0%  read (loop.py)",
        "process 8 (python -c import sign): 1 s, 20% of all",
        "  100.0%  check (sign.py)",
    ]
    assert spied.summary("") == ["no profile: py-spy saw no process at work"]


def test_without_py_spy_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert spied.profile("pretended", "part") == [
        "no profile: py-spy is not installed (`pip install py-spy`)"
    ]


def test_a_verdict_of_numpys_is_a_verdict_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reached = np.float64(2.0) >= 1
    _parts(monkeypatch, one=[replace(GOOD, reached=reached)])
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--json"])
    assert table.run("pretended", ("one",)) == 0
    assert json.loads(capsys.readouterr().out)[0]["reached"] is True


def test_the_shortest_form_is_that_of_the_run_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _parts(monkeypatch, one=[])
    module = sys.modules["pretended.one"]
    module.SIZE, module.QUICK = 1000, {"SIZE": 1}  # type: ignore[attr-defined]

    def rows() -> list[Row]:
        print("a part's own words")
        return [replace(GOOD, ours=f"{module.SIZE}")]

    module.rows = rows  # type: ignore[attr-defined]
    for flags, said in ((["--quick"], "1"), ([], "1000")):
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--json", *flags])
        assert table.run("pretended", ("one",)) == 0
        assert json.loads(capsys.readouterr().out)[0]["ours"] == said
