"""Is a stranger's JSON read within limits, and is little of it repeated?"""

from __future__ import annotations

import time

import pytest

from core.protocol.foreign import (
    MAX_DEPTH,
    MOST_NAMES,
    read_file,
    read_json,
    read_json_file,
    refuse_deep,
    shown,
)


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + closing * depth


def test_as_deep_as_the_limit_is_read_and_one_more_is_not() -> None:
    assert read_json(nested(MAX_DEPTH))
    assert read_json(b"[" + b",".join([nested(MAX_DEPTH - 1)] * 99) + b"]")
    for text in (
        nested(MAX_DEPTH + 1),
        b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
        b"[" + b",".join([nested(MAX_DEPTH)] * 99) + b"]",
    ):
        with pytest.raises(ValueError, match="nested"):
            read_json(text)


def test_brackets_inside_strings_do_not_count() -> None:
    quoted = b'"' + b"[{" * 999 + b'\\"[\\\\"'
    assert read_json(b"[" + quoted + b"]")
    hidden = b'["\\\\",' + nested(MAX_DEPTH + 1) + b"]"
    with pytest.raises(ValueError, match="nested"):
        refuse_deep(hidden)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 10**6,
        nested(10**6 // 2),
        b'{"a":' * 10**5,
        b'"' + b'\\"[' * 300_000,
        b'"\\"[' * 300_000,
        b'{"' * 500_000,
        b"[{}," * 200_000,
        b"\xff" * 10**6,
        b"9" * 10**6,
        b'[{"a":[' + b"]}" * 99_999,
    ],
)
def test_what_cannot_be_read_is_a_value_error_at_once(text: bytes) -> None:
    before = time.process_time()
    with pytest.raises(ValueError):
        read_json(text)
    assert time.process_time() - before < 2


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b",".join([b'{"role": "user", "content": ""}'] * 120_000) + b"]",
        b'["' + b'[","' * 10**6 + b'"]',
        b'["' + b'\\"[' * 10**6 + b'"]',
    ],
)
def test_the_depth_of_millions_of_strings_is_known_in_a_few_passes(text: bytes) -> None:
    """Other threads wait for each of these passes."""
    before = time.process_time()
    refuse_deep(text)
    assert time.process_time() - before < 0.2


def test_a_file_is_read_up_to_its_limit(tmp_path) -> None:
    file = tmp_path / "found.json"
    file.write_bytes(b'{"a": 1}')
    assert read_json_file(file, most_bytes=8) == {"a": 1}
    with pytest.raises(ValueError, match="more than 7 bytes"):
        read_file(file, most_bytes=7)
    with pytest.raises(OSError):
        read_json_file(tmp_path / "none", most_bytes=8)


def test_at_most_twenty_names_are_told_and_none_at_length() -> None:
    assert shown(["b", "a"]) == "'a', 'b'"
    told = shown("x" * 1000 + str(i) for i in range(2_000_000 // 1000))
    assert len(told) < 2_000 and told.endswith(f"and {2000 - MOST_NAMES} more")
