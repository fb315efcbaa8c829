"""A recording of a real run as a picture that moves: `make recording`.

It runs a command, notes when each line came, and writes an SVG whose lines appear in that order.
Waits are shortened, so that the whole takes about as long as it is asked to, and folders of
temporary files lose their names; nothing else is changed. It needs no player, and where motion is
not wanted it shows the end.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

COLUMNS, ROWS = 110, 27
CHARACTER, LINE, LEFT, TOP = 7.5, 18, 16, 48
#: The end stays on the screen so long before it begins anew.
REST_S = 5.0
#: The longest that one wait may take of the whole, as a share.
LONGEST_SHARE = 0.08
_TEMPORARY = re.compile(r"/tmp/headrace-[a-z]+-\w+/")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STYLE = """
svg { background: #0c1317; border-radius: 10px; }
text { font: 12.5px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
text { white-space: pre; }
.plain { fill: #cdd9de; } .typed { fill: #58c9cd; } .chapter { fill: #f2bc4a; font-weight: bold; }
.bad { fill: #ff938a; } .good { fill: #63d297; } .title { fill: #9db0b9; }
"""


@dataclass(frozen=True)
class Line:
    """A line of the screen, and how many seconds after the beginning it came."""

    text: str
    at_s: float


def record(argv: Sequence[str]) -> list[Line]:
    """Run a command to its end. Raises SystemExit where it fails."""
    began, lines = time.monotonic(), list[Line]()
    wide = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=wide
    ) as program:
        assert program.stdout is not None
        for text in program.stdout:
            print(text, end="", file=sys.stderr)
            lines += [Line(part, time.monotonic() - began) for part in _fitted(text)]
    if program.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {program.returncode}: nothing was written")
    return lines


def _fitted(text: str) -> Iterator[str]:
    """Without colours, in pieces that fit the screen."""
    plain = _TEMPORARY.sub("", _COLOURS.sub("", text.rstrip("\n")).expandtabs())
    yield plain[:COLUMNS]
    for at in range(COLUMNS, len(plain), COLUMNS - 6):
        yield "      " + plain[at : at + COLUMNS - 6]


def in_time(lines: Sequence[Line], length_s: float) -> list[Line]:
    """The same lines within so many seconds: each wait shortened, long ones the most."""
    waits = [b.at_s - a.at_s for a, b in zip([Line("", 0.0), *lines], lines, strict=False)]
    roots = [wait**0.5 for wait in waits]
    scale = length_s / (sum(roots) or 1.0)
    shown, at_s = list[Line](), 0.0
    for line, root in zip(lines, roots, strict=True):
        at_s += min(root * scale, length_s * LONGEST_SHARE)
        shown.append(Line(line.text, at_s))
    return shown


def picture(lines: Sequence[Line], title: str) -> str:
    """The SVG. Each line appears at its time, and the screen moves up by what does not fit."""
    length_s = lines[-1].at_s + REST_S
    width, height = LEFT * 2 + COLUMNS * CHARACTER, TOP + ROWS * LINE + 12
    body, style = list[str](), [_STYLE, "@media (prefers-reduced-motion: no-preference) {"]
    for number, line in enumerate(lines):
        share = 100 * line.at_s / length_s
        style.append(f"@keyframes l{number} {{0%,{share:.2f}%{{opacity:0}}")
        style.append(f"{min(100.0, share + 0.01):.2f}%,100%{{opacity:1}}}}")
        style.append(f"#l{number}{{animation:l{number} {length_s:.1f}s infinite}}")
        y = TOP + (number + 1) * LINE - 4
        body.append(
            f'<text id="l{number}" class="{_kind(line.text)}" x="{LEFT}" y="{y}">'
            f"{escape(line.text)}</text>"
        )
    style += _scrolling(lines, length_s)
    up = -max(0, len(lines) - ROWS) * LINE
    style.append(f"}} #screen {{ transform: translateY({up}px); }}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img" aria-label="{escape(title)}">'
        f"<style>{''.join(style)}</style>"
        f'<clipPath id="c"><rect x="0" y="{TOP - 8}" width="{width:.0f}" '
        f'height="{ROWS * LINE + 12}"/></clipPath>'
        '<circle cx="22" cy="20" r="6" fill="#ff938a"/><circle cx="42" cy="20" r="6" '
        'fill="#f2bc4a"/><circle cx="62" cy="20" r="6" fill="#63d297"/>'
        f'<text class="title" x="{width / 2:.0f}" y="24" text-anchor="middle">'
        f"{escape(title)}</text>"
        f'<g clip-path="url(#c)"><g id="screen">{"".join(body)}</g></g></svg>\n'
    )


def _scrolling(lines: Sequence[Line], length_s: float) -> list[str]:
    steps, up = ["0%{transform:translateY(0)}"], 0
    for number, line in enumerate(lines):
        if number >= ROWS:
            share = 100 * line.at_s / length_s
            steps.append(f"{share:.2f}%{{transform:translateY({-up}px)}}")
            up = (number + 1 - ROWS) * LINE
            steps.append(f"{min(100.0, share + 0.01):.2f}%{{transform:translateY({-up}px)}}")
    steps.append(f"100%{{transform:translateY({-up}px)}}")
    return [
        f"@keyframes up {{{''.join(steps)}}}",
        f"#screen{{animation:up {length_s:.1f}s infinite}}",
    ]


def _kind(text: str) -> str:
    said = text.strip()
    if re.match(r"\d+\. ", said):
        return "chapter"
    if re.search(r"\$ (client|miner|auditor|devnet) ", text):
        return "typed"
    if re.search(r"\b(fault|slashed|rounded to int8)\b", text):
        return "bad"
    return "good" if re.search(r"\b(paid|to the nano unit)\b", text) else "plain"


def main() -> None:
    """Record a command."""
    parser = argparse.ArgumentParser(description="Record a command as a picture that moves.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--title", required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="that it takes in the picture")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    lines = record([part for part in asked.command if part != "--"])
    asked.out.write_text(picture(in_time(lines, asked.seconds), asked.title), encoding="utf-8")


if __name__ == "__main__":
    main()
