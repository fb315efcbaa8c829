"""Does text survive, does a stream never cut a character, and do chats read as the model was
taught?
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from core.engine.weights.tokenizer import Tokenizer
from core.protocol.errors import ModelMissing, ModelUnsupported, UsageError
from devnet.models.tiny_models import write_tiny_tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße, 世界 🎉!\n\nHow are you?"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@given(text=st.text(max_size=80))
def test_text_round_trips(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=300)
@given(ids=st.lists(st.integers(0, 258), max_size=60))
def test_pieces_of_any_ids_join_to_the_whole_text(ids: list[int], tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream()
    pieces = [stream.push(i) for i in ids]
    whole = "".join(pieces) + stream.finish()
    assert whole == tokenizer.answer_text(ids)
    assert tokenizer.decode(ids).removeprefix(whole) in ("", "\ufffd", "\ufffd" * 2, "\ufffd" * 3)


@given(text=st.text(max_size=40))
def test_a_stream_of_real_text_shows_no_broken_characters(text: str, tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream()
    shown = ""
    for token in tokenizer.encode(text):
        shown += stream.push(token)
        assert text.startswith(shown)
    assert shown + stream.finish() == text
    assert stream.finish() == ""


def test_a_character_appears_with_its_last_byte(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream()
    assert [stream.push(i) for i in tokenizer.encode("a€b")] == ["a", "", "", "€", "b"]


def test_chats_are_encoded_as_transformers_encodes_them(folder: Path, tokenizer: Tokenizer) -> None:
    library = AutoTokenizer.from_pretrained(folder)
    expected = library.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert tokenizer.encode_chat(CHAT) == expected
    assert tokenizer.render_chat(CHAT).endswith("<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer.encode_chat(CHAT)).endswith("assistant\n")


def test_end_tokens_come_from_every_file_that_names_one(tiny: Callable, folder: Path) -> None:
    assert Tokenizer(folder).eos_ids == {258}
    assert Tokenizer(tiny("llama", layers=5)).eos_ids == {258}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "robot", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 3}],
    ],
)
def test_malformed_conversations_are_refused(messages: list, tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError):
        tokenizer.encode_chat(messages)


def test_a_template_cannot_reach_out_of_its_sandbox(folder: Path, tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    for text in (
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no system messages') }}",
    ):
        (tmp_path / "chat_template.jinja").write_text(text)
        with pytest.raises(UsageError, match="template refuses"):
            Tokenizer(tmp_path).encode_chat(CHAT)


def test_models_without_template_or_tokenizer_say_so(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="no tokenizer"):
        Tokenizer(tmp_path)
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    plain = Tokenizer(tmp_path)
    assert not plain.can_chat
    with pytest.raises(UsageError, match="no chat template"):
        plain.encode_chat(CHAT)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelUnsupported):
        Tokenizer(tmp_path)
