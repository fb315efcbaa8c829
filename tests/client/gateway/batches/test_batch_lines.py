"""Are a batch's lines found again where they lie, and is no file in memory as a whole?"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from client.gateway.batches import batch_lines
from client.gateway.batches.batch_lines import BatchFile, parts_of
from client.gateway.openai.models import ServedModel
from client.orders.requests import MAX_LINE_BYTES
from core.protocol.errors import UsageError
from tests.client.gateway.batches.test_batches import CHAT, line
from tests.client.gateway.toy import MODEL, tokenizer_in


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel(MODEL, tokenizer_in(tmp_path_factory.mktemp("toy")))


def written(folder: Path, lines: Sequence[Any]) -> BatchFile:
    path = folder / "requests.jsonl"
    texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    path.write_bytes(b"\n".join(texts))
    return BatchFile(path, CHAT, 64)


def test_good_lines_are_read_again_where_they_lie(tmp_path: Path, served: ServedModel) -> None:
    file = written(
        tmp_path,
        [
            batch_lines.BYTE_ORDER_MARK + json.dumps(line(0)).encode(),
            b"",
            b"{ no line",
            line(1, "köln 🚀", n=3),
            b"x" * (MAX_LINE_BYTES + 5),
            line(0),  # a name that was used
            {**line(2), "body": {**line(2)["body"], "model": "another"}},
            b"   ",
            line(3),
        ],
    )
    assert file.model() == "toy"
    lines = file.lines("toy", served)
    assert [one.number for one in lines.good] == [1, 4, 9]
    why = {bad.number: bad.error.why for bad in lines.bad}
    assert list(why) == [3, 5, 6, 7] and "longer than" in why[5] and "used before" in why[6]
    first, several, last = file.load(lines.good, served)
    assert (first.custom_id, several.custom_id, last.custom_id) == ("line-0", "line-1", "line-3")
    assert [prompt.custom_id for prompt in several.prompts] == lines.good[1].names
    assert len(several.prompts[2].ids) == lines.good[1].tokens_in
    assert lines.good[1].tokens_most == 3 * (lines.good[1].tokens_in + 40)
    assert file.read(lines.good[2:])[0].prompts == ()


def test_a_file_without_a_good_line_has_no_model(tmp_path: Path) -> None:
    file = written(tmp_path, [b"{", b"[]", {"custom_id": "x"}])
    assert file.model() is None
    assert [bad.number for bad in file.lines(None, None).bad] == [1, 2, 3]
    assert written(tmp_path, []).lines(None, None).total == 0


def test_too_many_lines_are_refused(
    tmp_path: Path, served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_lines, "MOST_LINES", 3)
    file = written(tmp_path, [line(number) for number in range(4)])
    with pytest.raises(UsageError, match="too many lines"):
        file.lines("toy", served)


def test_memory_does_not_grow_with_the_files_bytes(tmp_path: Path, served: ServedModel) -> None:
    text = "say:" + "a" * 3_000
    file = written(tmp_path, [line(number, text) for number in range(2_000)])
    assert file.path.stat().st_size > 6_000_000
    tracemalloc.start()
    lines = file.lines(file.model(), served)
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(lines.good) == 2_000
    assert kept < 1_000_000 and most < 2_000_000


def test_an_order_has_a_bound_of_prompt_tokens(
    tmp_path: Path, served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = written(tmp_path, [line(number, "x" * 100) for number in range(10)]).lines(
        "toy", served
    )
    monkeypatch.setattr(batch_lines, "MOST_PROMPT_TOKENS", 3 * lines.good[0].tokens_in)
    parts = list(parts_of(lines.good, 100, 10**9))
    assert [len(part) for part in parts] == [3, 3, 3, 1]
    assert [one for part in parts for one in part] == lines.good
