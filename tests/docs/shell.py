"""Which commands stand in a page, and would the programs take them?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from sitegen.commands import root_of
from sitegen.places import PROGRAMS, ROOT

#: Pages that people write. Generated ones are made of the programs' own words.
WRITTEN = (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))
#: Options that act while they are parsed.
ACTING = frozenset({"--install-completion", "--show-completion", "--version", "--help", "-h"})
INLINE = re.compile(rf"`((?:{'|'.join(PROGRAMS)}) [^`]+)`")


def blocks(text: str) -> list[str]:
    """The shell blocks of a page."""
    return re.findall(r"^```(?:sh|bash|shell)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(block: str) -> Iterator[list[str]]:
    """Each call of one of our programs in a block, as words; also inside `$(…)`."""
    for line in _lines(block):
        inner = re.findall(r"\$\(([^()]*)\)", line)
        for text in [re.sub(r"\$\([^()]*\)", "VALUE", line), *inner]:
            lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            lexer.commenters = "#"
            yield from _calls(list(lexer))


def _calls(words: list[str]) -> Iterator[list[str]]:
    call: list[str] = []
    for word in [*words, ";"]:
        if word and set(word) <= set("|&;<>"):
            while call and re.fullmatch(r"\w+=.*", call[0]):
                call = call[1:]
            if call and call[0] in PROGRAMS:
                yield call
            # What follows a redirection is a file, not a command.
            call = []
        else:
            call.append(word)


def _lines(block: str) -> Iterator[str]:
    ends: str | None = None
    for line in block.replace("\\\n", " ").splitlines():
        if ends is not None:
            ends = None if line.strip() == ends else ends
            continue
        heredoc = re.search(r"<<-?\s*'?(\w+)'?", line)
        if heredoc:
            ends = heredoc[1]
            line = line[: heredoc.start()]
        yield line


@cache
def _root(program: str) -> Any:
    return root_of(program)


def refused(words: list[str]) -> str:
    """Why the program would refuse these words, or nothing. They are parsed, and not run."""
    if ACTING & set(words):
        return unknown(shlex.join(words))
    command, name, arguments = _root(words[0]), words[0], words[1:]
    context = None
    try:
        while True:
            context = command.make_context(name, list(arguments), parent=context)
            if not hasattr(command, "commands"):
                return ""
            rest = [*getattr(context, "_protected_args", ()), *context.args]
            name, command, arguments = command.resolve_command(context, rest)
    except typer.TyperException as error:
        return f"{' '.join(words)}: {error.format_message()}"


def unknown(text: str) -> str:
    """Why a command that a sentence names is none: no such word, or no such option."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    command, path = _root(words[0]), [words[0]]
    rest = words[1:]
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        name = rest[0].strip(".,…|")
        if name not in command.commands:
            return f"{' '.join(path)} has no command {name}"
        command, path, rest = command.commands[name], [*path, name], rest[1:]
    known = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)}
    known |= {"--help", "-h"}
    wrong = [
        w
        for w in rest
        if re.fullmatch(r"--[a-z-]+", w.partition("=")[0]) and w.partition("=")[0] not in known
    ]
    return f"{' '.join(path)} has no option {', '.join(wrong)}" if wrong else ""


def page_name(path: Path) -> str:
    """A page as tests call it."""
    return str(path.relative_to(ROOT))
