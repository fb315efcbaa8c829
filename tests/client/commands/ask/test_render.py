"""Does a running batch show each text once, in whole lines, and never repaint the terminal?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from client.commands.ask.render import BatchView, ChatView, _wrap, printable
from client.orders.orders import PromptBatch, route_text
from core.engine.weights.tokenizer import Tokenizer
from core.protocol.errors import PeerUnreachable
from core.runtime.commands.console import StageProgress as Progress
from devnet.models.tiny_models import write_tiny_tokenizer
from tests.town.orders import prompts
from tests.town.stages import Stages


class Terminal:
    """Takes notes as rich would show them; markup that is none raises here as it does there."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(Text.from_markup(text).plain)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Tokenizer(folder)


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def view_of(terminal: Terminal, tokenizer: Tokenizer, *, stream_text: bool = True) -> BatchView:
    progress = Progress("generating", 2, "", lambda line: None)
    return BatchView(
        terminal,  # type: ignore[arg-type]
        tokenizer,
        lambda units: f"{units} units",
        progress,
        stream_text=stream_text,
    )


def feed(view: BatchView | ChatView, name: str, ids: list[int], first: int = 0) -> None:
    for step, token in enumerate(ids, start=first):
        view.token(name, step, token)


def test_text_that_is_generated_again_is_printed_once(
    terminal: Terminal, tokenizer: Tokenizer
) -> None:
    view = view_of(terminal, tokenizer)
    ids = tokenizer.encode("one two three four")
    feed(view, "a", ids[:9])
    view.pipeline_lost(PeerUnreachable("stage 1", "gone"), 0, 1)
    feed(view, "a", ids)  # from the first token, through another pipeline
    view.request_finished("a", "length")
    assert [n for n in terminal.notes if n.strip().startswith("a ")] == [
        "  a            one two three four"
    ]
    assert view.tokens == len(ids)
    assert view.finished == 1


def test_answers_that_stream_at_once_keep_their_names(
    terminal: Terminal, tokenizer: Tokenizer
) -> None:
    view = view_of(terminal, tokenizer)
    a, b = tokenizer.encode("first\nsecond"), tokenizer.encode("third\n")
    for step in range(len(a)):
        view.token("a", step, a[step])
        if step < len(b):
            view.token("b", step, b[step])
    view.request_finished("a", "stop")
    view.request_finished("b", "stop")
    assert [n.split() for n in terminal.notes] == [["a", "first"], ["a", "second"], ["b", "third"]]


def test_one_answer_is_shown_as_it_comes(terminal: Terminal, tokenizer: Tokenizer) -> None:
    view = view_of(terminal, tokenizer)
    order = Stages().match(PromptBatch.of(prompts(1))).signed.order
    view.order_signed(order, 1)
    terminal.notes.clear()
    feed(view, "a", tokenizer.encode("first\nsecond"))
    assert [n.split() for n in terminal.notes] == [["a", "first"]]
    view.request_finished("a", "stop")
    assert [n.split() for n in terminal.notes] == [["a", "first"], ["a", "second"]]


def test_without_text_only_the_progress_moves(terminal: Terminal, tokenizer: Tokenizer) -> None:
    view = view_of(terminal, tokenizer, stream_text=False)
    feed(view, "a", tokenizer.encode("long text " * 30))
    view.request_finished("a", "length")
    assert terminal.notes == []


@pytest.mark.parametrize(
    "text", ["[/red] and [link=x]", "\x1b[2J\x1b]0;title\x07 wiped\x9b1m", "\\[x]"]
)
def test_strangers_words_are_shown_and_never_obeyed(
    terminal: Terminal, tokenizer: Tokenizer, text: str
) -> None:
    view = view_of(terminal, tokenizer)
    feed(view, text, tokenizer.encode(text))
    view.request_finished(text, "stop")
    view.pipeline_lost(PeerUnreachable(text, text), 1, 2)
    batch = PromptBatch.of(prompts(1))
    match = Stages().match(batch)
    view.not_acknowledged(match, PeerUnreachable(text, text))
    shown = "".join(terminal.notes)
    assert printable(text)[:8] in shown
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    out: list[str] = []
    chat = ChatView(tokenizer, out.append)
    feed(chat, "chat", tokenizer.encode(text))
    chat.request_finished("chat", "stop")
    assert "".join(out) == printable(text)


def test_nothing_of_a_stop_string_is_shown(terminal: Terminal, tokenizer: Tokenizer) -> None:
    view = view_of(terminal, tokenizer)
    view.stop_at({"a": ("END",)})
    feed(view, "a", tokenizer.encode("one ENOUGH END!"))
    feed(view, "b", tokenizer.encode("two END!"))
    view.request_finished("a", "stop")
    view.request_finished("b", "length")
    assert [note.split(maxsplit=1)[1] for note in terminal.notes] == ["one ENOUGH", "two END!"]
    out: list[str] = []
    chat = ChatView(tokenizer, out.append, ("END",))
    for step, token in enumerate(tokenizer.encode("an EN")):
        chat.token("chat", step, token)
    assert "".join(out) == "an "
    chat.request_finished("chat", "length")
    assert "".join(out) == "an EN"


def test_the_money_is_told(terminal: Terminal, tokenizer: Tokenizer) -> None:
    view = view_of(terminal, tokenizer)
    batch = PromptBatch.of(prompts(2))
    match = Stages().match(batch)
    view.order_signed(match.signed.order, 99)
    view.job_opened(match)
    view.acknowledged(match, 40)
    view.acknowledged(match, 2)
    assert view.paid_units == 42
    assert "locks 99 units" in terminal.notes[0]
    assert route_text(match.plan) in terminal.notes[1]
    assert "[0-1] → " in terminal.notes[1]
    assert "40 units for what was delivered" in terminal.notes[2]


def test_rate_is_tokens_over_the_time_from_the_first_job(
    terminal: Terminal, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("client.commands.ask.render.time.monotonic", lambda: now[0])
    view = view_of(terminal, tokenizer)
    assert view.tokens_per_s == 0.0
    match = Stages().match(PromptBatch.of(prompts(1)))
    now[0] = 110.0
    view.job_opened(match)
    now[0] = 112.0
    feed(view, "a", [65] * 10)
    now[0] = 113.0
    view.job_opened(match)  # a second pipeline does not restart the clock
    now[0] = 115.0
    feed(view, "a", [65] * 10, first=10)
    assert view.tokens_per_s == pytest.approx(20 / 5)


def test_chat_shows_each_token_once(tokenizer: Tokenizer) -> None:
    out: list[str] = []
    view = ChatView(tokenizer, out.append)
    ids = tokenizer.encode("naïve 😀 text")
    feed(view, "chat", ids[:7])
    feed(view, "chat", ids)
    view.request_finished("chat", "stop")
    assert "".join(out) == "naïve 😀 text"
    assert view.tokens == len(ids)


words = st.text(st.sampled_from("ab \n"), max_size=300)


@given(words, st.integers(1, 40))
def test_wrapped_lines_hold_every_word_in_order(text: str, width: int) -> None:
    *lines, rest = _wrap(text, width)
    assert all(len(line) <= width for line in lines)
    assert "".join("".join([*lines, rest]).split()) == "".join(text.split())
    assert "\n" not in rest
    assert len(rest) <= width


def test_wrap_cuts_at_spaces_and_only_else_inside_words() -> None:
    assert _wrap("aaa bbb ccc", 7) == ["aaa", "bbb ccc"]
    assert _wrap("aaaaaaaaaa", 4) == ["aaaa", "aaaa", "aa"]
    assert _wrap("one\n\ntwo", 20) == ["one", "two"]


def test_printable_keeps_lines_and_every_script() -> None:
    assert printable("a\tb\nc é 漢 😀") == "a\tb\nc é 漢 😀"
    assert printable("\x00\x1b\x7f\x9b") == "����"
