"""Which requests does a batch's file hold, and which lines answer them?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from client.gateway.accepting import make_prompts
from client.gateway.errors import BadParameter, openai_error
from client.gateway.openai.fields import Endpoint, RequestBody, read_json, read_wanted
from client.gateway.openai.shapes import ChoiceText, Usage, head_of
from client.gateway.openai.writing import TokenTold, Writer
from client.orders.requests import MAX_LINE_BYTES
from client.pipeline.pipeline import Logprobs
from client.sessions.answering import Said
from core.engine.sampling.stops import stop_strings
from core.protocol import wire
from core.protocol.errors import HeadraceError, LineInvalid, UsageError

if TYPE_CHECKING:
    from client.gateway.openai.models import ServedModel
    from client.gateway.records.tables import BatchAnswerRow
    from client.orders.orders import Prompt

MOST_LINES = 50_000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class BatchRequest:
    """One request of a batch. `prompts` are named `LINE.CHOICE`."""

    number: int
    custom_id: str
    wanted: RequestBody
    prompts: tuple[Prompt, ...] = ()
    tokens_in: int = 0

    @property
    def tokens_most(self) -> int:
        """What its answers may need at most, each with its prompt."""
        return sum(len(one.ids) + one.sampling.max_new_tokens for one in self.prompts)


@dataclass(frozen=True)
class BadLine:
    """A line that is no request, or could not be answered."""

    number: int
    custom_id: str
    error: HeadraceError


@dataclass
class Lines:
    """A file as it was read."""

    good: list[BatchRequest] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.good) + len(self.bad)


def read_lines(path: Path, endpoint: Endpoint) -> Lines:
    """The file's lines; all good ones ask the first one's model. Raises UsageError for too many."""
    found, seen = Lines(), set[str]()
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            text = data.removeprefix(BYTE_ORDER_MARK) if number == 1 else data
            if not text.strip():
                continue
            if found.total >= MOST_LINES:
                raise UsageError("the file has too many lines", f"at most {MOST_LINES} are taken")
            custom_id = ""
            try:
                entry = _entry(number, text)
                custom_id = _custom_id(number, entry, seen)
                wanted = _wanted(entry, endpoint)
                model = found.good[0].wanted.model if found.good else wanted.model
                if wanted.model != model:
                    raise BadParameter("model", f"one batch has one model, here {model}")
            except HeadraceError as error:
                found.bad.append(BadLine(number, custom_id, error))
                continue
            seen.add(custom_id)
            found.good.append(BatchRequest(number, custom_id, wanted))
    return found


def with_prompts(lines: Lines, served: ServedModel, default_max_tokens: int) -> Lines:
    """The same lines as prompts of the model; what does not fit it joins the bad ones."""
    found = Lines(bad=list(lines.bad))
    for line in lines.good:
        try:
            pairs, tokens_in = make_prompts(
                line.wanted, served, str(line.number), default_max_tokens
            )
        except HeadraceError as error:
            found.bad.append(BadLine(line.number, line.custom_id, error))
            continue
        prompts = tuple(prompt for prompt, _ in pairs)
        found.good.append(replace(line, prompts=prompts, tokens_in=tokens_in))
    found.bad.sort(key=lambda bad: bad.number)
    return found


def parts_of(
    lines: Sequence[BatchRequest], most_lines: float, most_tokens: float
) -> Iterator[list[BatchRequest]]:
    """The lines in groups that are one order each, within these bounds; a long line is alone."""
    part, prompts, tokens = list[BatchRequest](), 0, 0
    for line in lines:
        prompts, tokens = prompts + len(line.prompts), tokens + line.tokens_most
        is_full = len(part) >= most_lines or tokens > most_tokens or prompts > wire.MAX_REQUESTS
        if part and is_full:
            yield part
            part, prompts, tokens = [], len(line.prompts), line.tokens_most
        part.append(line)
    if part:
        yield part


def place_of(custom_id: str) -> tuple[int, int]:
    """`LINE.CHOICE` as two numbers."""
    number, _, choice = custom_id.partition(".")
    return int(number), int(choice)


def output_line(
    batch_id: str,
    line: BatchRequest,
    answers: Sequence[BatchAnswerRow],
    served: ServedModel,
    created: int,
) -> bytes:
    """The answered line of the output file."""
    request_id = line_id(batch_id, line.number)
    frame = head_of(line.wanted, served, request_id, created)
    choices = [_choice(line, row, served, frame.with_logprobs) for row in answers]
    produced = sum(len(json.loads(row.tokens)) for row in answers)
    body = frame.body(choices, Usage(line.tokens_in, produced))
    if line.wanted.warnings:
        body["warnings"] = list(line.wanted.warnings)
    response = {"status_code": 200, "request_id": request_id, "body": body}
    return _encoded(batch_id, line.number, line.custom_id, response, None)


def error_line(batch_id: str, bad: BadLine) -> bytes:
    """The line of the error file."""
    error, request_id = bad.error, line_id(batch_id, bad.number)
    body = openai_error(error)
    response = {"status_code": error.http_status, "request_id": request_id, "body": body}
    told = {"code": error.api_code, "message": f"{error.what}: {error.why}"}
    return _encoded(batch_id, bad.number, bad.custom_id, response, told)


def receipt_line(
    line: BatchRequest,
    answers: Sequence[BatchAnswerRow],
    receipts: Mapping[tuple[str, int], list[Any]],
) -> bytes:
    """Who answered a line in which jobs, and what they signed for it."""
    shown = [
        {
            "choice": row.answer_index,
            "job": row.job_id,
            "request_index": row.job_request,
            "operators": json.loads(row.operators),
            "tokens_in": len(line.prompts[row.answer_index].ids),
            "tokens_out": len(json.loads(row.tokens)),
            "receipts": receipts.get((row.job_id, row.job_request), []),
        }
        for row in answers
    ]
    return msgspec.json.encode({"custom_id": line.custom_id, "answers": shown}) + b"\n"


def line_id(batch_id: str, number: int) -> str:
    return f"req_{batch_id.removeprefix('batch_')}{number:06x}"


def _choice(
    line: BatchRequest, row: BatchAnswerRow, served: ServedModel, with_logprobs: bool
) -> ChoiceText:
    writer = Writer(served.tokenizer, stop_strings(line.wanted.sampling), with_logprobs)
    told = msgspec.json.decode(row.logprobs, type=list[Logprobs | None] | None)
    ids = json.loads(row.tokens)
    texts, tokens = list[str](), list[TokenTold]()
    for step, token in enumerate(ids):
        piece = writer.push(Said(step, token, told[step] if told else None))
        texts.append(piece.text)
        tokens += piece.tokens
    rest = writer.finish(row.finish)
    return ChoiceText(
        row.answer_index, "".join([*texts, rest.text]), row.finish, (*tokens, *rest.tokens)
    )


def _encoded(batch_id: str, number: int, custom_id: str, response: Any, error: Any) -> bytes:
    entry = {
        "id": f"batch_{line_id(batch_id, number)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(entry) + b"\n"


def _entry(number: int, data: bytes) -> dict[str, Any]:
    if len(data) > MAX_LINE_BYTES:
        raise LineInvalid(number, f"it is longer than {MAX_LINE_BYTES} bytes")
    try:
        return read_json(data)
    except UsageError as error:
        raise LineInvalid(number, error.why) from None


def _custom_id(number: int, entry: Mapping[str, Any], seen: Iterable[str]) -> str:
    custom_id = entry.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= 512:
        raise LineInvalid(number, "custom_id must be a text of 1 to 512 characters")
    if custom_id in seen:
        raise LineInvalid(number, "its custom_id was used before", custom_id=custom_id)
    return custom_id


def _wanted(entry: Mapping[str, Any], endpoint: Endpoint) -> RequestBody:
    if entry.get("method") != "POST":
        raise BadParameter("method", "it must be POST")
    if entry.get("url") != endpoint:
        raise BadParameter("url", f"it must be the batch's endpoint {endpoint}")
    body = entry.get("body")
    if not isinstance(body, dict):
        raise BadParameter("body", "it must be an object")
    wanted = read_wanted(body, endpoint)
    if wanted.is_stream:
        raise BadParameter("stream", "answers of a batch are not streamed")
    if len(wanted.prompts) > 1:
        raise BadParameter("prompt", "a line of a batch has one prompt")
    return wanted
