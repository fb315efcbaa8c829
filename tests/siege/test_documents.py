"""What strangers write, sent whole: unknown fields by the million, and JSON that never ends."""

from __future__ import annotations

import pytest

from client.gateway.openai.fields import CHAT, read_json, read_wanted
from core.protocol.errors import UsageError
from core.protocol.foreign import MOST_NAMES
from matcher.planning.plan_file import what_if_of

ASKED = {"model": "toy", "messages": [{"role": "user", "content": "hello"}]}


def test_a_request_of_two_million_unknown_fields_is_warned_of_twenty() -> None:
    strange = {f"field{i:07}": 1 for i in range(2_000_000)}
    wanted = read_wanted(ASKED | strange, CHAT)
    assert sum(warning.count("'field") for warning in wanted.warnings) == MOST_NAMES
    assert sum(map(len, wanted.warnings)) < 1_000


def test_few_unknown_fields_are_warned_of_one_by_one_and_not_at_length() -> None:
    wanted = read_wanted({**ASKED, "top_x": 1, "y" * 10**6: 2}, CHAT)
    first, second = wanted.warnings
    assert first == "'top_x' is not known and was ignored"
    assert len(second) < 200


@pytest.mark.parametrize(
    "body", [b"[" * 10**6, b'{"a":' * 10**5, b"[" * 500 + b"]" * 500, b"\xff", b"[1]", b'"\\ud800"']
)
def test_a_body_that_cannot_be_read_is_refused_as_such(body: bytes) -> None:
    with pytest.raises(UsageError):
        read_json(body)


def test_a_fleet_names_twenty_of_its_unknown_fields() -> None:
    strange = {f"field{i}": 1 for i in range(100_000)}
    for document in (
        strange,
        {"model": strange, "machines": []},
        {"schema": "fleet/1", "models": strange},
        {"schema": "fleet/1", "models": strange, "columns": [], "nodes": []},
    ):
        with pytest.raises(UsageError) as caught:
            what_if_of(document, "fleet", "none" if "columns" in document else None)
        assert len("".join(caught.value.lines())) < 2_000
