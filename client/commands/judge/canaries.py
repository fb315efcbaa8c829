"""Do stages answer requests as they honestly should? Canaries, mixed among other requests.

A canary is an earlier greedy request with its answer from a job that an audit found clean. Put into
a file of other requests with the same parameters, it reaches a stage as a prompt like any. Another
answer is no proof of guilt, as a near tie may fall either way on other machines: it says which job
to audit whole.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.orders.requests import ChatRequest, read_requests
from core.protocol.errors import CheckFailed, HeadraceError, UsageError
from core.protocol.types import SamplingParams
from core.runtime.commands.results import Result

Json = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """An earlier request, and the text that it was honestly answered with."""

    request: ChatRequest
    line: Json
    answer: str


@dataclass(frozen=True)
class Compared:
    """What became of one canary."""

    custom_id: str
    job: str
    is_same: bool
    first_difference: int | None  # in characters


def known_of(
    lines: Sequence[bytes], results: Iterable[bytes], defaults: SamplingParams
) -> list[Known]:
    """Answered greedy requests; others draw by their place in the order, and cannot be repeated."""
    answers = {custom_id: text for custom_id, (text, _) in answers_in(results).items()}
    good, _ = read_requests(lines, defaults)
    return [
        Known(request, json.loads(lines[request.line_number - 1]), answers[request.custom_id])
        for request in good
        if request.custom_id in answers and request.sampling.temperature_micro == 0
    ]


def answers_in(results: Iterable[bytes]) -> dict[str, tuple[str, str]]:
    """custom_id → answer and job, of the answered lines. Raises UsageError for another file."""
    found = {}
    try:
        for line in results:
            if not line.strip():
                continue
            entry = json.loads(line)
            response = entry.get("response")
            if response:
                text = response["body"]["choices"][0]["message"]["content"]
                found[entry["custom_id"]] = (str(text), str(response["request_id"]))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise UsageError("this is no file of results", str(error)) from None
    return found


def mix(
    lines: Sequence[bytes],
    known: Sequence[Known],
    count: int,
    defaults: SamplingParams,
    rng: random.Random,
) -> tuple[list[Json], dict[str, str]]:
    """The requests of a file, shuffled with canaries named alike, and custom_id → answer due.

    Canaries have the parameters of an ordinary request and are not asked already. Raises UsageError
    where fewer than `count` fit.
    """
    ordinary, bad = read_requests(lines, defaults)
    if bad:
        raise UsageError("the file has lines that are no requests", str(bad[0]))
    parameters = {request.sampling for request in ordinary}
    asked = {request.messages for request in ordinary}
    fitting = [
        k for k in known if k.request.sampling in parameters and k.request.messages not in asked
    ]
    fitting = list({k.request.messages: k for k in fitting}.values())
    if len(fitting) < count:
        raise UsageError(
            f"{len(fitting)} known answers fit, {count} are wanted",
            "a canary must be greedy and have the parameters of a request of the file",
            next_step="add known answers, or ask for fewer",
        )
    chosen = rng.sample(fitting, count)
    entries: list[tuple[Json, str | None]] = [
        (_named(json.loads(lines[request.line_number - 1]), request.custom_id), None)
        for request in ordinary
    ]
    taken = {request.custom_id for request in ordinary}
    for number, canary in enumerate(chosen):
        name = f"line-{len(lines) + number + 1}"
        while name in taken:
            name += "-"
        taken.add(name)
        entries.append((_named(canary.line, name), canary.answer))
    rng.shuffle(entries)
    due = {entry["custom_id"]: answer for entry, answer in entries if answer is not None}
    return [entry for entry, _ in entries], due


def _named(entry: Mapping[str, Any], custom_id: str) -> Json:
    whole = {k: v for k, v in entry.items() if k != "custom_id"}
    if "body" not in entry:
        whole = {"method": "POST", "url": "/v1/chat/completions", "body": whole}
    return {"custom_id": custom_id} | whole


def compare(due: Mapping[str, str], results: Iterable[bytes]) -> list[Compared]:
    """Each canary that was answered, against the answer that was due."""
    answers = answers_in(results)
    found = []
    for custom_id, expected in due.items():
        if custom_id in answers:
            text, job = answers[custom_id]
            same = text == expected
            pairs, end = zip(text, expected, strict=False), min(len(text), len(expected))
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), end)
            found.append(Compared(custom_id, job, same, None if same else at))
    return found


class CanariesMixed(Result, frozen=True):
    """`canaries mix`."""

    file: str
    canaries: int
    requests: int
    secret: str


class Canary(Result, frozen=True):
    """`canaries check`: one request whose answer was known."""

    custom_id: str
    job: str
    same: bool
    first_difference: str


def mix_files(
    requests: Path, known: Sequence[tuple[Path, Path]], count: int, out: Path
) -> CanariesMixed:
    """Write the mixed file and, for its owner alone, the answers due. Raises UsageError."""
    defaults, secret = SamplingParams(), out.with_name(out.name + ".canaries")
    answered = [
        k for file, results in known for k in known_of(_lines(file), _lines(results), defaults)
    ]
    mixed, due = mix(_lines(requests), answered, count, defaults, random.SystemRandom())
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in mixed)
    _write(secret, json.dumps(due, ensure_ascii=False))
    _write(out, text)
    return CanariesMixed(str(out), len(due), len(mixed), str(secret))


def check_files(secret: Path, results: Path) -> list[Canary]:
    """`auditor canaries check`: a row a canary. Raises UsageError."""
    try:
        due = json.loads(_read(secret))
        assert isinstance(due, dict)
    except (ValueError, AssertionError):
        raise UsageError(
            f"{secret} does not say which answers are due", "`auditor canaries mix` writes it"
        ) from None
    return [
        Canary(
            custom_id=c.custom_id,
            job=c.job,
            same=c.is_same,
            first_difference="" if c.first_difference is None else str(c.first_difference),
        )
        for c in compare(due, _lines(results))
    ]


def suspicion(rows: Sequence[Canary]) -> HeadraceError | None:
    """What canaries that differ say: which job is to be audited."""
    other = [row for row in rows if not row.same]
    if not other:
        return None
    return CheckFailed(
        f"{len(other)} of {len(rows)} canaries came back otherwise",
        f"{other[0].custom_id} differs from character {other[0].first_difference} on",
        state="that is a reason to look, and no proof",
        next_step=f"auditor check {other[0].job}",
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read", str(error)) from None


def _lines(file: Path) -> list[bytes]:
    return _read(file).splitlines()


def _write(file: Path, text: str) -> None:
    try:
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
            out.write(text)
    except OSError as error:
        raise UsageError(f"{file} cannot be written", str(error)) from None
