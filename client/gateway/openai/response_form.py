"""How is an answer told at `/v1/responses`: items, and the events in which they come?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from client.gateway.openai.answer_form import ChoiceText, StreamEnd, Usage
from client.gateway.openai.writing import TextPiece, chat_logprobs
from core.protocol.types import MICRO

if TYPE_CHECKING:
    from client.gateway.openai.fields import RequestBody
    from client.gateway.openai.items import ResponseAsked
    from client.gateway.openai.models import ServedModel
    from client.gateway.openai.tools import ToolCall
    from client.gateway.openai.writing import TokenTold

Json = dict[str, Any]


@dataclass
class _Open:
    """The item that is being told: a message or a thought."""

    kind: str
    place: int
    item_id: str
    text: str = ""
    tokens: tuple[TokenTold, ...] = ()


class ResponseForm:
    """One response on its way: an `AnswerForm` of one answer."""

    def __init__(
        self,
        wanted: RequestBody,
        asked: ResponseAsked,
        served: ServedModel,
        request_id: str,
        created: int,
    ) -> None:
        self._asked, self._served, self._created = asked, served, created
        drawn = served.sampling(wanted)
        self._drawn = {
            "temperature": drawn.temperature_micro / MICRO,
            "top_p": drawn.top_p_micro / MICRO,
        }
        self._warnings = wanted.warnings
        self._with_logprobs = wanted.sampling.n_logprobs is not None
        self._name = request_id.removeprefix("req_")
        self._output = list[Json]()
        self._open: _Open | None = None
        self._numbered = 0
        self.told: Json | None = None  # the response, once it is whole

    def opening(self, choices: int, used: Usage) -> bytes:
        begun = self._response("in_progress", None)
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=begun) for kind in kinds)

    def piece(
        self, index: int, piece: TextPiece, offset: int, used: Usage, finish: str | None = None
    ) -> bytes:
        events = list[bytes]()
        if piece.thought:
            events += self._say("reasoning", piece.thought, ())
        if piece.text:
            events += self._say("message", piece.text, piece.tokens)
        if piece.calls:
            events += self._close("completed")
            for call in piece.calls:
                events += self._call(call)
        return b"".join(events)

    def ending(
        self, index: int, rest: TextPiece, offset: int, used: Usage, end: StreamEnd
    ) -> bytes:
        events = [self.piece(index, rest, offset, used)]
        is_cut = end.finish == "length"
        if not self._output and self._open is None:
            events += self._say("message", "", rest.tokens)
        events += self._close("incomplete" if is_cut else "completed")
        self.told = self._response("incomplete" if is_cut else "completed", used, end.paid)
        events.append(self._event(f"response.{self.told['status']}", response=self.told))
        return b"".join(events)

    def whole(self, choices: Sequence[ChoiceText], used: Usage, paid: Json) -> Json:
        (choice,) = choices
        said = TextPiece(choice.text, choice.tokens, choice.thought, choice.calls)
        self.ending(0, said, 0, used, StreamEnd(choice.finish, paid))
        assert self.told is not None, "the end was just told"
        return self.told

    def _say(self, kind: str, text: str, tokens: tuple[TokenTold, ...]) -> list[bytes]:
        """More of a message or a thought, which begins an item unless one of its kind is open."""
        events = list[bytes]()
        if self._open is None or self._open.kind != kind:
            events += self._close("completed")
            item_id = f"{'msg' if kind == 'message' else 'rs'}_{self._name}{len(self._output)}"
            self._open = _Open(kind, len(self._output), item_id)
            begun = self._item(self._open, "in_progress") | {"content": []}
            events.append(
                self._event("response.output_item.added", output_index=self._open.place, item=begun)
            )
            part = self._part(self._open)
            events.append(self._of_part("response.content_part.added", part=part))
        open_ = self._open
        open_.text, open_.tokens = open_.text + text, open_.tokens + tokens
        if text:
            more = {"logprobs": self._logprobs(tokens)} if kind == "message" else {}
            events.append(self._of_part(f"response.{_PART[kind]}.delta", delta=text, **more))
        return events

    def _close(self, status: str) -> list[bytes]:
        """The item that is open is whole."""
        open_ = self._open
        if open_ is None:
            return []
        part, item = self._part(open_), self._item(open_, status)
        more = {"logprobs": part.get("logprobs", [])} if open_.kind == "message" else {}
        events = [
            self._of_part(f"response.{_PART[open_.kind]}.done", text=open_.text, **more),
            self._of_part("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=open_.place, item=item),
        ]
        self._output.append(item)
        self._open = None
        return events

    def _call(self, call: ToolCall) -> list[bytes]:
        place = len(self._output)
        item = {
            "type": "function_call",
            "id": f"fc_{self._name}{place}",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        self._output.append(item)
        begun, at = item | {"arguments": "", "status": "in_progress"}, {"output_index": place}
        of_item, kind = at | {"item_id": item["id"]}, "response.function_call_arguments"
        said = {"arguments": call.arguments, "name": call.name}
        return [
            self._event("response.output_item.added", item=begun, **at),
            self._event(f"{kind}.delta", delta=call.arguments, **of_item),
            self._event(f"{kind}.done", **said, **of_item),
            self._event("response.output_item.done", item=item, **at),
        ]

    def _item(self, open_: _Open, status: str) -> Json:
        parts = {"id": open_.item_id, "content": [self._part(open_)], "status": status}
        if open_.kind == "message":
            return {"type": "message", "role": "assistant", **parts}
        return {"type": "reasoning", "summary": [], **parts}

    def _part(self, open_: _Open) -> Json:
        if open_.kind != "message":
            return {"type": "reasoning_text", "text": open_.text}
        part: Json = {"type": "output_text", "text": open_.text, "annotations": []}
        return part | {"logprobs": self._logprobs(open_.tokens)}

    def _logprobs(self, tokens: tuple[TokenTold, ...]) -> list[Json]:
        if not self._with_logprobs:
            return []
        found: list[Json] = chat_logprobs(tokens, self._served.tokenizer)["content"]
        return found

    def _of_part(self, kind: str, **more: Any) -> bytes:
        assert self._open is not None, "of an item"
        item = {"item_id": self._open.item_id, "output_index": self._open.place}
        return self._event(kind, **item, content_index=0, **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._numbered, **more}
        self._numbered += 1
        return f"event: {kind}\n".encode() + b"data: " + msgspec.json.encode(value) + b"\n\n"

    def _response(self, status: str, used: Usage | None, paid: Json | None = None) -> Json:
        is_cut = status == "incomplete"
        return {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self._served.name,
            "output": list(self._output),
            "reasoning": {"effort": None, "summary": None},
            "store": self._asked.is_kept,
            "truncation": "disabled",
            "usage": used.of_response() if used is not None else None,
            **self._asked.told,
            **self._drawn,
            **({"warnings": list(self._warnings)} if self._warnings else {}),
            **({"headrace": paid} if paid is not None else {}),
        }


_PART = {"message": "output_text", "reasoning": "reasoning_text"}
