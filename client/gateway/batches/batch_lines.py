"""Which requests does a batch's file hold, and which lines answer them?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from client.gateway.accepting import make_prompts
from client.gateway.errors import BadParameter, openai_error
from client.gateway.openai.answer_form import ChoiceText, Usage
from client.gateway.openai.fields import Endpoint, RequestBody, read_json, read_wanted
from client.gateway.openai.shapes import choice_of, head_of
from client.orders.requests import MAX_LINE_BYTES
from client.pipeline.pipeline import Logprobs
from client.sessions.answering import Said
from core.protocol import wire
from core.protocol.errors import HeadraceError, LineInvalid, UsageError

if TYPE_CHECKING:
    from client.gateway.openai.models import ServedModel
    from client.gateway.records.tables import BatchAnswerRow
    from client.orders.orders import Prompt

MOST_LINES = 50_000
#: Reading one may take a tenth of a second; no grammar is one too.
MOST_GRAMMARS = 257
#: Of the lines of one order, which are in memory while it runs: some 40 MB.
MOST_PROMPT_TOKENS = 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class BatchRequest:
    """One request of a batch. `prompts` are named `LINE.CHOICE`."""

    number: int
    custom_id: str
    wanted: RequestBody
    prompts: tuple[Prompt, ...] = ()


@dataclass(frozen=True)
class BadLine:
    """A line that is no request, or could not be answered."""

    number: int
    custom_id: str
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class LinePlace:
    """A good line: where it lies in its file, and what its answers, `choices` of one prompt, need.

    `tokens_in` are the prompt's; `tokens_most` are of all answers, each with its prompt.
    """

    number: int
    offset: int
    size_bytes: int
    choices: int
    tokens_in: int
    tokens_most: int

    @property
    def names(self) -> list[str]:
        """Of its prompts."""
        return [f"{self.number}.{choice}" for choice in range(self.choices)]


@dataclass
class Lines:
    """What a file holds, without its texts."""

    good: list[LinePlace] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.good) + len(self.bad)


@dataclass(frozen=True)
class BatchFile:
    """A batch's input, of which few lines are in memory at once."""

    path: Path
    endpoint: Endpoint
    default_max_tokens: int

    def model(self) -> str | None:
        """The model of the first good line, which all ask; None if no line is good.

        Raises UsageError for too many lines.
        """
        for _, _, entry in self._entries():
            if isinstance(entry, BatchRequest):
                return entry.wanted.model
        return None

    def lines(self, model: str | None, served: ServedModel | None) -> Lines:
        """All lines, each a good one if it asks this model for what fits it.

        Raises UsageError for too many lines.
        """
        found, seen, grammars = Lines(), set[bytes](), set[str]()
        for offset, size, entry in self._entries():
            try:
                if isinstance(entry, BadLine):
                    raise entry.error
                digest = hashlib.sha256(entry.custom_id.encode()).digest()
                if digest in seen:
                    why = "its custom_id was used before"
                    raise LineInvalid(entry.number, why, custom_id=entry.custom_id)
                if entry.wanted.model != model:
                    raise BadParameter("model", f"one batch has one model, here {model}")
                grammars.add(entry.wanted.sampling.grammar)
                if len(grammars) > MOST_GRAMMARS:
                    why = f"one batch has at most {MOST_GRAMMARS - 1} formats and grammars"
                    raise BadParameter("response_format", why)
                assert served is not None  # where a line is good, it has a model
                prompts = self._prompts(entry, served)
            except HeadraceError as error:
                found.bad.append(BadLine(entry.number, entry.custom_id, error))
                continue
            seen.add(digest)
            needs = [len(one.ids) + one.sampling.max_new_tokens for one in prompts]
            tokens = len(prompts[0].ids), sum(needs)
            found.good.append(LinePlace(entry.number, offset, size, len(prompts), *tokens))
        return found

    def read(self, places: Iterable[LinePlace]) -> list[BatchRequest]:
        """Good lines, without their prompts."""
        with self.path.open("rb") as file:
            return [self._read(file, place) for place in places]

    def load(self, places: Iterable[LinePlace], served: ServedModel) -> list[BatchRequest]:
        """Good lines with their prompts."""
        found = self.read(places)
        return [replace(line, prompts=self._prompts(line, served)) for line in found]

    def _read(self, file: BinaryIO, place: LinePlace) -> BatchRequest:
        file.seek(place.offset)
        entry = self._entry(place.number, file.read(place.size_bytes))
        if isinstance(entry, BadLine):
            raise entry.error
        return entry

    def _prompts(self, line: BatchRequest, served: ServedModel) -> tuple[Prompt, ...]:
        pairs, _ = make_prompts(line.wanted, served, str(line.number), self.default_max_tokens)
        return tuple(prompt for prompt, _ in pairs)

    def _entries(self) -> Iterator[tuple[int, int, BatchRequest | BadLine]]:
        """Offset, bytes and content of each line that is not empty."""
        offset = number = total = 0
        with self.path.open("rb") as file:
            while data := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                size = len(data)
                if size > MAX_LINE_BYTES and not data.endswith(b"\n"):
                    size += _skip_line(file)
                if data.strip() not in (b"", BYTE_ORDER_MARK):
                    total += 1
                    if total > MOST_LINES:
                        why = f"at most {MOST_LINES} are taken"
                        raise UsageError("the file has too many lines", why)
                    yield offset, size, self._entry(number, data)
                offset += size

    def _entry(self, number: int, data: bytes) -> BatchRequest | BadLine:
        custom_id = ""
        try:
            entry = _entry(number, data.removeprefix(BYTE_ORDER_MARK) if number == 1 else data)
            custom_id = _custom_id(number, entry)
            return BatchRequest(number, custom_id, _wanted(entry, self.endpoint))
        except HeadraceError as error:
            return BadLine(number, custom_id, error)


def parts_of(
    lines: Sequence[LinePlace], most_lines: float, most_tokens: float
) -> Iterator[list[LinePlace]]:
    """The lines in groups that are one order each, within these bounds; a long line is alone."""
    part, prompts, tokens, tokens_in = list[LinePlace](), 0, 0, 0
    for line in lines:
        prompts, tokens = prompts + line.choices, tokens + line.tokens_most
        tokens_in += line.tokens_in
        is_full = (
            len(part) >= most_lines
            or tokens > most_tokens
            or prompts > wire.MAX_REQUESTS
            or tokens_in > MOST_PROMPT_TOKENS
        )
        if part and is_full:
            yield part
            part, prompts, tokens = [], line.choices, line.tokens_most
            tokens_in = line.tokens_in
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
    tokens_in: int,
    answers: Sequence[BatchAnswerRow],
    served: ServedModel,
    created: int,
) -> bytes:
    """The answered line of the output file."""
    request_id = line_id(batch_id, line.number)
    frame = head_of(line.wanted, served, request_id, created)
    choices = [_choice(line, row, served, request_id) for row in answers]
    produced = sum(len(json.loads(row.tokens)) for row in answers)
    body = frame.body(choices, Usage(tokens_in, produced))
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
    tokens_in: int,
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
            "tokens_in": tokens_in,
            "tokens_out": len(json.loads(row.tokens)),
            "receipts": receipts.get((row.job_id, row.job_request), []),
        }
        for row in answers
    ]
    return msgspec.json.encode({"custom_id": line.custom_id, "answers": shown}) + b"\n"


def line_id(batch_id: str, number: int) -> str:
    return f"req_{batch_id.removeprefix('batch_')}{number:06x}"


def _choice(
    line: BatchRequest, row: BatchAnswerRow, served: ServedModel, request_id: str
) -> ChoiceText:
    writer = served.writer(line.wanted, f"{request_id}.{row.answer_index}")
    told = msgspec.json.decode(row.logprobs, type=list[Logprobs | None] | None)
    pieces = [
        writer.push(Said(step, token, told[step] if told else None))
        for step, token in enumerate(json.loads(row.tokens))
    ]
    pieces.append(writer.finish(row.finish))
    return choice_of(row.answer_index, pieces, writer.end_shown(row.finish))


def _encoded(batch_id: str, number: int, custom_id: str, response: Any, error: Any) -> bytes:
    entry = {
        "id": f"batch_{line_id(batch_id, number)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(entry) + b"\n"


def _skip_line(file: BinaryIO) -> int:
    """Read to the end of a line that is refused; how many bytes."""
    skipped = 0
    while rest := file.readline(MAX_LINE_BYTES):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            break
    return skipped


def _entry(number: int, data: bytes) -> dict[str, Any]:
    if len(data) > MAX_LINE_BYTES:
        raise LineInvalid(number, f"it is longer than {MAX_LINE_BYTES} bytes")
    try:
        return read_json(data)
    except UsageError as error:
        raise LineInvalid(number, error.why) from None


def _custom_id(number: int, entry: Mapping[str, Any]) -> str:
    custom_id = entry.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= 512:
        raise LineInvalid(number, "custom_id must be a text of 1 to 512 characters")
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
