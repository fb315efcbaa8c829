"""Does what people install, one wheel, have all that the programs need outside the checkout?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.wheel import build

PACKAGES = ("core", "scheduler", "matcher", "miner", "client", "devnet")
PROGRAMS = ("miner.cli", "client.cli", "client.auditor_cli", "matcher.cli", "devnet.cli")
#: What no command shows without a network: compiled C, databases, pages.
INSIDE = """
import sys
from pathlib import Path
import core
assert str(Path(core.__file__)).startswith(sys.argv[1]), core.__file__
from core.engine.native.native import kernels
from core.dispute.kernels.native import hashing
assert kernels() is not None and hashing() is not None
from matcher.records.store import Store
Store.open(f"sqlite:///{sys.argv[2]}/matcher.sqlite").close()
from client.dashboard import render
assert (Path(render.__file__).parent / "templates" / "page.html").is_file()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked wheel."""
    return build(tmp_path_factory.mktemp("wheel"))


def test_every_file_of_the_packages_is_in_it_and_no_other(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    found = {
        path.relative_to(wheel).as_posix()
        for package in PACKAGES
        for path in (wheel / package).rglob("*")
        if path.is_file()
    }
    assert found == {name for name in listed if (ROOT / name).is_file()}


def test_its_programs_work_where_no_checkout_is(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "ETH_"))}
    env |= {"PYTHONPATH": str(wheel), "HEADRACE_HOME": str(home), "HOME": str(tmp_path)}

    def run(*argv: str) -> str:
        done = subprocess.run(
            [sys.executable, *argv], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    for program in PROGRAMS:
        assert "Usage" in run("-m", program, "--help")
    run("-c", INSIDE, str(wheel), str(tmp_path))
    assert "hr-" in run("-m", "client.cli", "keys", "new", "me", "--json")
    run("-m", "client.cli", "network", "ls", "--json")
    run("-m", "matcher.cli", "methods", "--json")
    run("-m", "client.cli", "backup", "save", "copy", "--json")
    assert "gateway" in " ".join(map(str, home.rglob("*.sqlite")))


def test_its_entry_points_are_the_five_programs(wheel: Path) -> None:
    (file,) = wheel.glob("*.dist-info/entry_points.txt")
    lines = [line for line in file.read_text().splitlines() if "=" in line]
    assert sorted(line.split(" = ")[0] for line in lines) == [
        "auditor",
        "client",
        "devnet",
        "matcher",
        "miner",
    ]
