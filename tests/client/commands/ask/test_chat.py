"""A conversation reads prompts until there are none, and says what cannot be asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from client.commands.ask import chat
from client.commands.ask.chat import Conversation, converse, prompt_ids
from core.protocol.errors import UsageError
from core.protocol.types import SamplingParams
from core.runtime.commands.console import GlobalOptions


class Terminal:
    """A person who types these lines and then leaves."""

    def __init__(self, *lines: str, can_ask: bool = True) -> None:
        self.lines, self.can_ask = list(lines), can_ask
        self.options = GlobalOptions()
        self.settings = SimpleNamespace(client=SimpleNamespace(model="tiny"))

    def unlock(self) -> None: ...

    def ask(self, question: str, *, flag: str) -> str:
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """What was sent at each turn; the model answers with the number of messages."""
    sent: list[list[dict[str, str]]] = []

    async def turn(
        run: Any, context: Any, model: Any, tok: Any, signer: Any, messages: Any, c: Any
    ) -> str:
        sent.append([dict(m) for m in messages])
        return str(len(messages))

    async def model(name: str) -> Any:
        return SimpleNamespace()

    async def files_of(model: object) -> SimpleNamespace:
        return SimpleNamespace(folder=None)

    @asynccontextmanager
    async def open_context(settings: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(model=model, files_of=files_of)

    class NoSessions:
        async def close(self) -> None: ...

    monkeypatch.setattr(chat, "_turn", turn)
    monkeypatch.setattr(chat, "_sessions", lambda *_, **__: NoSessions())
    monkeypatch.setattr(chat, "open_context", open_context)
    monkeypatch.setattr(chat, "Tokenizer", lambda folder: None)
    return sent


HOW = Conversation(None, SamplingParams(max_new_tokens=16))


@pytest.mark.parametrize("end", [(), ("",), ("  ", "never")])
async def test_turns_go_on_until_there_is_nothing_more(
    turns: list[Any], end: tuple[str, ...]
) -> None:
    how = Conversation("be kind", SamplingParams(max_new_tokens=16))
    await converse(Terminal("a", "b", *end), None, None, how)  # type: ignore[arg-type]
    assert [[(m["role"], m["content"]) for m in messages] for messages in turns] == [
        [("system", "be kind"), ("user", "a")],
        [("system", "be kind"), ("user", "a"), ("assistant", "2"), ("user", "b")],
    ]


async def test_one_prompt_is_one_turn(turns: list[Any]) -> None:
    await converse(Terminal("never"), "hello", None, HOW)  # type: ignore[arg-type]
    assert len(turns) == 1


@pytest.mark.parametrize(("prompt", "can_ask"), [(None, False), ("", True), (" ", False)])
async def test_no_prompt_is_an_error(turns: list[Any], prompt: str | None, can_ask: bool) -> None:
    with pytest.raises(UsageError, match="no prompt"):
        await converse(Terminal(can_ask=can_ask), prompt, None, HOW)  # type: ignore[arg-type]


@pytest.mark.parametrize("can_chat", [True, False])
def test_a_base_model_is_given_the_text_of_all_turns(can_chat: bool) -> None:
    asked: list[Any] = []
    tokenizer: Any = SimpleNamespace(
        can_chat=can_chat,
        encode_chat=lambda messages: asked.append(list(messages)) or [1],
        encode=lambda text: asked.append(text) or [2],
    )
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "Rivers:"}]
    ids = prompt_ids(tokenizer, messages)
    assert (ids, asked) == (([1], [messages]) if can_chat else ([2], ["be kind\nRivers:"]))
