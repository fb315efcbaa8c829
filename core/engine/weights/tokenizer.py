"""How does text become ids, and how do ids become text without cutting a character in two?

Built on `tokenizers` and the model's own chat template; transformers would add seconds of import to
every client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from core.protocol.errors import ModelMissing, ModelUnsupported, UsageError
from core.protocol.foreign import read_json_file

_MAX_SETTINGS_BYTES = 32 * 2**20
_REPLACEMENT = "�"
#: An unfinished UTF-8 character is at most three bytes, hence at most three replacement characters.
_MAX_UNFINISHED = 3
ROLES = ("system", "user", "assistant", "tool")


class Tokenizer:
    """Text to ids and back for one model."""

    def __init__(self, model_dir: Path) -> None:
        """Raises ModelMissing without `tokenizer.json`, ModelUnsupported if it cannot be read."""
        from tokenizers import Tokenizer as Library

        self.model_dir = Path(model_dir)
        path = self.model_dir / "tokenizer.json"
        if not path.is_file():
            raise ModelMissing(f"{self.model_dir.name} has no tokenizer", why=f"there is no {path}")
        try:
            self._library = Library.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelUnsupported(f"cannot read {path.name}", why=str(error)) from error
        self._settings = _read_json(self.model_dir / "tokenizer_config.json")
        self.vocab_size: int = self._library.get_vocab_size(with_added_tokens=True)
        self.eos_ids: frozenset[int] = frozenset(self._find_eos_ids())

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the special tokens that the model's tokenizer adds by itself."""
        return self._encode(text)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Ids of a conversation through the chat template, for the answer. Raises UsageError."""
        return self._encode(self.render_chat(messages, tools), add_special_tokens=False)

    @cached_property
    def longest_token_bytes(self) -> int:
        """No token is longer in UTF-8, so a text of N bytes has at least N / this many tokens.

        A tokenizer that first shortens text (NFKC, spaces left out) can undercut that.
        """
        return max(len(token.encode()) for token in self._library.get_vocab())

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """The text that `encode_chat` encodes."""
        for number, message in enumerate(messages):
            role, content = message.get("role"), message.get("content")
            if role not in ROLES or not isinstance(content, str):
                raise UsageError(
                    f"message {number} cannot be used",
                    why=f"it needs a role of {', '.join(ROLES)} and a text as content",
                )
        if not messages:
            raise UsageError("the conversation is empty", why="it has no messages")
        if self.template_text is None:
            raise UsageError(
                f"{self.model_dir.name} has no chat template",
                why="it is a base model",
                next_step="send a prompt to /v1/completions instead of messages; in a file, "
                '"url": "/v1/completions"',
            )
        try:
            return str(
                self._template.render(
                    messages=[dict(message) for message in messages],
                    tools=list(tools) or None,
                    add_generation_prompt=True,
                    **{name: self._token_text(name) for name in ("bos_token", "eos_token")},
                )
            )
        except Exception as error:  # a template is foreign code and may fail in any way
            raise UsageError("the model's chat template refuses this", why=str(error)) from error

    @property
    def can_chat(self) -> bool:
        return self.template_text is not None

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """Text of ids; special tokens are left out unless asked for."""
        return str(self._library.decode(list(ids), skip_special_tokens=not keep_special))

    def answer_text(self, ids: Sequence[int]) -> str:
        """Text of an answer, whose last character is left out if it was cut in two."""
        return _without_half(self.decode(ids))

    def stream(self, *, keep_special: bool = False) -> TextStream:
        """A decoder for one answer as it arrives."""
        return TextStream(self, keep_special=keep_special)

    def _encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """As a batch of one: unlike `encode`, the library then lets other threads run."""
        found = self._library.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(found[0].ids)

    @cached_property
    def _template(self) -> Any:
        """Compiled, which takes milliseconds. Raises whatever the template's mistakes raise."""
        template = _jinja().from_string(self.template_text)
        # As a chain they would be walked at every rendering.
        template.globals = dict(template.globals)
        return template

    @cached_property
    def template_text(self) -> str | None:
        """The chat template; None for a model that has none."""
        path = self.model_dir / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        stored = self._settings.get("chat_template")
        if isinstance(stored, list):  # several named ones
            named = {item.get("name"): item.get("template") for item in stored}
            stored = named.get("default")
        return stored if isinstance(stored, str) else None

    def _token_text(self, name: str) -> str:
        value = self._settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else ""

    def _find_eos_ids(self) -> set[int]:
        found: set[int] = set()
        for file in ("generation_config.json", "config.json"):
            stated = _read_json(self.model_dir / file).get("eos_token_id")
            found |= {
                i for i in (stated if isinstance(stated, list) else [stated]) if isinstance(i, int)
            }
        named = self._library.token_to_id(self._token_text("eos_token"))
        return found | ({named} if named is not None else set())


class TextStream:
    """Ids to text as they come, final once returned; together `Tokenizer.answer_text` of all."""

    def __init__(self, tokenizer: Tokenizer, *, keep_special: bool = False) -> None:
        self._tokenizer, self._keep_special = tokenizer, keep_special
        self._ids: list[int] = []
        self._context = 0  # decoding starts here, so that joining rules see what came before
        self._read = 0  # ids before this one are returned in full
        self._given = 0  # characters of the text after `_read` that are returned already

    def push(self, token: int) -> str:
        """The text that `token` completes, "" while a character is unfinished."""
        self._ids.append(token)
        fresh = self._fresh()
        ready = len(_without_half(fresh))
        piece = fresh[self._given : ready]
        self._given = max(self._given, ready)
        if ready == len(fresh) and fresh:
            self._context, self._read, self._given = self._read, len(self._ids), 0
        return piece

    def finish(self) -> str:
        """What is left; a character that was cut in two at the end is not."""
        piece = _without_half(self._fresh())[self._given :]
        self._context, self._read, self._given = self._read, len(self._ids), 0
        return piece

    def _fresh(self) -> str:
        before = self._decoded(self._ids[self._context : self._read])
        return self._decoded(self._ids[self._context :])[len(before) :]

    def _decoded(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, keep_special=self._keep_special)


def _without_half(text: str) -> str:
    """Without what an unfinished character at its end is decoded as."""
    unfinished = len(text) - len(text.rstrip(_REPLACEMENT))
    return text[: len(text) - min(unfinished, _MAX_UNFINISHED)]


def _jinja() -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = read_json_file(path, most_bytes=_MAX_SETTINGS_BYTES)
    except ValueError as error:
        raise ModelUnsupported(f"cannot read {path.name}", why=f"not JSON: {error}") from error
    return value if isinstance(value, dict) else {}
