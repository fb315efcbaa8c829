"""Do agents written with other people's libraries finish a task of two functions, unmodified?

Their environments are made by `make agents`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.table import Row
from tests.agents.environments import PROGRAMS, run
from tests.client.gateway.world import World

MOST_PROGRAMS = 100
QUICK = {"MOST_PROGRAMS": 1}


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="headrace-agents-") as folder:
        world = World(Path(folder)).start()
        try:
            return [_row(world, program) for program in list(PROGRAMS)[:MOST_PROGRAMS]]
        finally:
            world.stop()


def _row(world: World, program: str) -> Row:
    made, said = PROGRAMS[program], "its environment is not there: make agents"
    if made.python.is_file():
        said = (run(program, world.base_url, world.new_key(), "toy").splitlines() or [""])[-1]
    return Row(
        f"tool loop of {program.replace('_', '-')}",
        "passes unmodified",
        "passes" if said == "done" else said,
        ", ".join(made.packages),
        "",
        said == "done",
    )
