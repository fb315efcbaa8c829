"""Does an answer end with the first token that completes a stop string, and is no more text shown
than should be?
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.engine.sampling.stops import (
    AnswerEnding,
    ShownText,
    StopScan,
    cut_at_stop,
    stop_strings,
)
from core.engine.weights.tokenizer import Tokenizer
from core.protocol.types import SamplingParams
from devnet.models.tiny_models import write_tiny_tokenizer

text_of_few = st.text(alphabet="abé世🎉", max_size=25)
few_stops = st.lists(st.text(alphabet="abé世🎉", min_size=1, max_size=4), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("bytes")
    write_tiny_tokenizer(path)
    return Tokenizer(path)


@pytest.fixture(scope="module")
def with_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Like SentencePiece's: words with ▁ for a space, single bytes for what the vocabulary
    lacks.
    """
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers

    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab"]
    library = Library(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[("▁", "a"), ("a", "b")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    library.normalizer = normalizers.Replace(" ", "▁")
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    path: Path = tmp_path_factory.mktemp("fallback")
    library.save(str(path / "tokenizer.json"))
    return Tokenizer(path)


def params(*stops: str, **more: object) -> SamplingParams:
    encoded = tuple(sorted({stop.encode() for stop in stops}))
    given: dict[str, Any] = {"max_new_tokens": 1000, "stop": encoded, **more}
    return SamplingParams(**given)


def end_of(ending: AnswerEnding, tokens: Sequence[int]) -> tuple[int, str] | None:
    finishes = [ending.push(token) for token in tokens]
    return next(((i, finish) for i, finish in enumerate(finishes) if finish), None)


def first_complete(text: str, stops: Sequence[str]) -> int | None:
    """How many bytes of the text are there when one of the stops is, and the last character is
    whole.
    """
    raw = text.encode()
    for size in range(1, len(raw) + 1):
        whole = raw[:size].decode(errors="ignore")
        if any(stop in whole for stop in stops):
            return size
    return None


@given(text=text_of_few, stops=few_stops)
def test_the_answer_ends_with_the_byte_that_completes_a_stop_string(
    text: str, stops: list[str], byte_level: Tokenizer
) -> None:
    tokens = byte_level.encode(text)  # one byte each
    found = end_of(AnswerEnding(params(*stops), (), byte_level), tokens)
    size = first_complete(text, stops)
    assert found == (None if size is None else (size - 1, "stop"))


@given(text=st.text(alphabet="ab é世", max_size=25), stops=few_stops)
def test_it_ends_with_the_first_token_whose_text_has_a_stop_string(
    text: str, stops: list[str], with_fallback: Tokenizer
) -> None:
    tokens = with_fallback.encode(text)
    ending = AnswerEnding(params(*stops), (), with_fallback)
    stream, shown, expected = with_fallback.stream(), "", None
    for i, token in enumerate(tokens):
        shown += stream.push(token)
        if any(stop in shown for stop in stops):
            expected = (i, "stop")
            break
    assert end_of(ending, tokens) == expected


@given(text=text_of_few, stops=few_stops, cut=st.integers(0, 60))
def test_a_continued_answer_ends_where_the_undisturbed_one_would(
    text: str, stops: list[str], cut: int, byte_level: Tokenizer
) -> None:
    tokens = byte_level.encode(text)
    whole = end_of(AnswerEnding(params(*stops), (), byte_level), tokens)
    if whole is None or cut > whole[0]:
        return
    prompt = byte_level.encode("a question") + tokens[:cut]
    rest = AnswerEnding(params(*stops, first_step=cut), (), byte_level, prompt)
    assert end_of(rest, tokens[cut:]) == (whole[0] - cut, "stop")


def test_what_stood_before_a_continuation_does_not_end_it(byte_level: Tokenizer) -> None:
    before = byte_level.encode("stop")
    scan = StopScan(byte_level, ("to", "op!"), before)
    assert [scan.push(token) for token in byte_level.encode("!")] == [True]
    scan = StopScan(byte_level, ("to",), before)
    assert not any(scan.push(token) for token in byte_level.encode(" it"))


def test_a_stop_string_goes_before_the_length_and_an_end_of_text_may_be_ignored() -> None:
    assert end_of(AnswerEnding(params(max_new_tokens=3), {9}, None), [1, 2, 9]) == (2, "stop")
    assert end_of(AnswerEnding(params(max_new_tokens=3), {9}, None), [1, 2, 3]) == (2, "length")
    assert end_of(
        AnswerEnding(params(max_new_tokens=3, ignore_eos=True), {9}, None), [9, 9, 9]
    ) == (
        2,
        "length",
    )


def test_special_tokens_are_no_text_that_could_stop(byte_level: Tokenizer) -> None:
    special = byte_level._library.token_to_id("<|im_start|>")
    ending = AnswerEnding(params("im_start"), byte_level.eos_ids, byte_level)
    assert end_of(ending, [special, *byte_level.encode("im_star")]) is None


@given(text=text_of_few, stops=few_stops, cuts=st.lists(st.integers(0, 25), max_size=5))
def test_shown_text_is_the_cut_text_and_is_never_taken_back(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown, so_far, heard = ShownText(stops), "", ""
    for start, end in itertools.pairwise(places):
        so_far += shown.push(text[start:end])
        heard = text[:end]
        if any(stop in heard for stop in stops):
            break  # the answer ends here
        assert heard.startswith(so_far)
    assert so_far + shown.finish() == cut_at_stop(heard, stops)
    assert shown.push("more") == ("" if cut_at_stop(heard, stops) != heard else "more")


def test_without_stop_strings_all_text_is_shown_at_once() -> None:
    shown = ShownText(())
    assert (shown.push("abc"), shown.finish()) == ("abc", "")
    assert cut_at_stop("abc", ()) == "abc"


def test_stop_strings_come_back_as_text() -> None:
    assert stop_strings(params("é", "a")) == ("a", "é")
