"""Canaries look like their neighbours, come back as they were known to, and point at the job where
they do not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from client.commands.judge.canaries import check_files, compare, known_of, mix, mix_files, suspicion
from client.orders.requests import read_requests
from core.protocol.errors import UsageError
from core.protocol.types import SamplingParams
from core.runtime.commands.results import plain

DEFAULTS = SamplingParams()


def line(name: str, text: str, **body: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    entry = {
        "custom_id": name,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": messages} | body,
    }
    return json.dumps(entry).encode()


def result(name: str, text: str, job: str = "job_1") -> bytes:
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
    response = {"status_code": 200, "request_id": job, "body": body}
    return json.dumps({"custom_id": name, "response": response, "error": None}).encode()


OLD = [line(f"o{i}", f"old question {i}") for i in range(5)]
OLD_RESULTS = [result(f"o{i}", f"old answer {i}") for i in range(5)]
NEW = [line(f"q{i}", f"new question {i}") for i in range(6)]


def mixed(count: int = 3, lines: Sequence[bytes] = NEW, seed: int = 1) -> Any:
    known = known_of(OLD, OLD_RESULTS, DEFAULTS)
    return mix(lines, known, count, DEFAULTS, random.Random(seed))


def test_mixed_file_holds_every_request_and_the_canaries_alike() -> None:
    entries, due = mixed()
    good, bad = read_requests([json.dumps(e) for e in entries], DEFAULTS)
    assert not bad
    assert len(good) == 9
    assert {r.custom_id for r in good} - set(due) == {f"q{i}" for i in range(6)}
    assert len({r.sampling for r in good}) == 1
    assert {tuple(sorted(e)) for e in entries} == {("body", "custom_id", "method", "url")}
    asked = {r.custom_id: r.messages[0].content for r in good}
    for name, answer in due.items():
        assert asked[name].replace("question", "answer") == answer


def test_places_are_not_known_beforehand() -> None:
    places = set()
    for seed in range(30):
        entries, due = mixed(1, seed=seed)
        places.add(next(i for i, e in enumerate(entries) if e["custom_id"] in due))
    assert len(places) >= 5


def test_only_greedy_requests_with_a_neighbours_parameters_are_canaries() -> None:
    drawn = [line("o0", "old question 0", temperature=0.7)]
    assert known_of(drawn, OLD_RESULTS, DEFAULTS) == []
    with pytest.raises(UsageError, match="0 known answers fit"):
        mixed(1, lines=[line("q0", "new question", max_tokens=7)])
    with pytest.raises(UsageError, match="4 known answers fit"):
        mixed(5, lines=[*NEW, line("q9", "old question 3")])


def test_another_answer_names_its_job() -> None:
    _, due = mixed()
    answers = [result(name, text) for name, text in due.items()]
    assert all(c.is_same for c in compare(due, answers))
    name = next(iter(due))
    answers[0] = result(name, due[name][:4] + "!", job="job_7")
    (other,) = [c for c in compare(due, answers) if not c.is_same]
    assert (other.custom_id, other.job, other.first_difference) == (name, "job_7", 4)


def test_files_come_and_go(tmp_path: Path) -> None:
    files = {}
    for name, lines in {"old": OLD, "results": OLD_RESULTS, "new": NEW}.items():
        files[name] = tmp_path / name
        files[name].write_bytes(b"\n".join(lines))
    out = tmp_path / "mixed.jsonl"
    said = plain(mix_files(files["new"], [(files["old"], files["results"])], 2, out))
    assert (said["canaries"], said["requests"]) == (2, 8)
    secret = Path(said["secret"])
    assert secret.stat().st_mode & 0o777 == 0o600
    due = json.loads(secret.read_text())
    (tmp_path / "answers").write_bytes(b"\n".join(result(n, t) for n, t in due.items()))
    rows = check_files(secret, tmp_path / "answers")
    assert suspicion(rows) is None
    (tmp_path / "answers").write_bytes(b"\n".join(result(n, "no", "job_9") for n in due))
    error = suspicion(check_files(secret, tmp_path / "answers"))
    assert error is not None
    assert error.exit_code == 9
    assert "job_9" in error.next_step
    with pytest.raises(UsageError, match="cannot be written"):
        mix_files(files["new"], [(files["old"], files["results"])], 2, out)
    (tmp_path / "answers").write_text("{")
    with pytest.raises(UsageError, match="no file of results"):
        check_files(secret, tmp_path / "answers")
