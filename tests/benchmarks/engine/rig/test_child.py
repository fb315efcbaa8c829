"""Does a benchmark learn what went wrong in a process of its own?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.engine.rig.child import Child, ChildFailed

SCRIPT = """
import asyncio, json, sys
from benchmarks.engine.rig.child import keep_stdout, obey, say

async def perform(request):
    if request["do"] == "fail":
        raise KeyError("the reason")
    if request["do"] == "die":
        print("last words", file=sys.stderr, flush=True)
        sys.exit(3)
    print("a library prints this")
    return {"echo": request["word"]}

async def main():
    say(json.loads(sys.argv[1]))
    await obey(perform)

keep_stdout()
print("and this, before anything")
asyncio.run(main())
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "a_script.py").write_text(SCRIPT)
    return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}


async def test_it_answers_whatever_libraries_print(environ: dict[str, str]) -> None:
    child = await Child.start("a_script", {"hello": 1}, environ)
    try:
        assert child.ready == {"hello": 1}
        assert await child.ask("say", word="é" * 100_000) == {"echo": "é" * 100_000}
        with pytest.raises(ChildFailed, match="the reason"):
            await child.ask("fail")
        assert await child.ask("say", word="still here") == {"echo": "still here"}
    finally:
        await child.stop()


async def test_its_last_words_are_told(environ: dict[str, str]) -> None:
    child = await Child.start("a_script", {}, environ)
    try:
        with pytest.raises(ChildFailed, match="last words"):
            await child.ask("die")
    finally:
        await child.stop()


async def test_a_module_that_is_not_there_fails_at_the_start(environ: dict[str, str]) -> None:
    with pytest.raises(ChildFailed, match="no_such_module"):
        await Child.start("no_such_module", {}, environ)
