"""Would every command that a page shows be taken by the shell, and by our programs?"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from sitegen.errors import error_classes
from sitegen.messages import messages_of
from sitegen.site import generated

from core.runtime.settings import known_keys
from tests.docs.conftest import ROOT
from tests.docs.shell import INLINE, WRITTEN, blocks, commands, page_name, refused, unknown


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Every page, written and generated."""
    made = {path: text for path, text in generated().items() if path.endswith(".md")}
    return {**{page_name(path): path.read_text(encoding="utf-8") for path in WRITTEN}, **made}


def test_every_shell_block_parses(pages: dict[str, str], tmp_path: Path) -> None:
    seen = 0
    for page, text in pages.items():
        for number, block in enumerate(blocks(text)):
            file = tmp_path / f"{seen}.sh"
            file.write_text(block)
            done = subprocess.run(["bash", "-n", file], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{page}, block {number}: {done.stderr}"
            seen += 1
    assert seen > 30


def test_every_command_in_a_shell_block_is_taken_by_its_program(pages: dict[str, str]) -> None:
    seen, wrong = 0, []
    for page, text in pages.items():
        for block in blocks(text):
            for words in commands(block):
                seen += 1
                problem = refused(words)
                if problem:
                    wrong.append(f"{page}: {problem}")
    assert not wrong
    assert seen > 60


def test_every_command_that_a_sentence_names_exists(pages: dict[str, str]) -> None:
    wrong = [
        f"{page}: `{text}`: {problem}"
        for page, content in pages.items()
        for text in INLINE.findall(content)
        if (problem := unknown(text))
    ]
    assert not wrong


def test_every_setting_that_a_page_names_exists(pages: dict[str, str]) -> None:
    sections = "|".join(sorted({key.partition(".")[0] for key in known_keys() if "." in key}))
    keys = {*known_keys(), "network.contracts", "network.models"}
    named = {
        (page, key)
        for page, text in pages.items()
        if page not in ("papers.md", "errors/contracts.md")  # names of modules, and of Solidity
        for key in re.findall(rf"`((?:{sections})\.[a-z_]+)(?: =[^`]*)?`", text)
    }
    assert len(named) > 20
    assert not {(page, key) for page, key in named if key not in keys and not _is_module(key)}


def _is_module(name: str) -> bool:
    return (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()


def test_every_command_that_an_error_s_class_tells_to_type_exists() -> None:
    wrong = [
        f"{kind.code}: {problem}"
        for kind in error_classes()
        for text in INLINE.findall(
            " ".join([kind.default_next, *(m.next_step for m in messages_of(kind))])
        )
        if (problem := unknown(text))
    ]
    assert not wrong


@pytest.mark.parametrize(
    "line",
    [
        "client chat --no-such-option",
        "client flat",
        "miner stake ad 5usd",
        "client submit",
        "FOO=1 devnet up --miners many",
    ],
)
def test_a_command_that_is_none_is_noticed(line: str) -> None:
    assert [refused(words) for words in commands(line)] != [""]
    assert all(refused(words) for words in commands(line))


def test_commands_are_found_in_pipes_substitutions_and_behind_variables() -> None:
    block = (
        "x=$(client jobs ls --json | head)\n"
        "HEADRACE_HOME=a devnet up && miner status\n"
        "cat <<'END'\nclient no\nEND\n"
    )
    assert list(commands(block)) == [
        ["client", "jobs", "ls", "--json"],
        ["devnet", "up"],
        ["miner", "status"],
    ]
