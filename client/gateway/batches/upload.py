"""How is a file taken out of a form while it arrives, with nothing kept but the file?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from client.gateway.errors import BadParameter, TooLarge
from core.protocol.errors import UsageError

PURPOSES = ("batch", "batch_output")
#: Of a form, beside its file: names, values and what separates them.
MOST_OTHER_BYTES = 64 * 2**10


class Upload:
    """A form with the fields `file` and `purpose`, in any order. Read `chunks` before the rest."""

    def __init__(self, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> None:
        """Raises UsageError for what is no form."""
        kind, options = parse_options_header(headers.get("content-type", ""))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise UsageError("the upload is malformed", "it must be multipart/form-data")
        self._body = body
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._add_name,
                "on_header_value": self._add_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._begin_data,
                "on_part_data": self._add_data,
            },
        )
        self._fields: dict[str, bytearray] = {}
        self._filename: str | None = None
        self._arrived = bytearray()  # of the file, and not handed on yet
        self._into = self._arrived  # where the data of the present part goes
        self._name, self._value, self._disposition = bytearray(), bytearray(), b""

    async def chunks(self) -> AsyncIterator[bytes]:
        """The file's bytes, to the form's end. Raises UsageError, TooLarge for other fields."""
        others = 0
        async for data in self._body:
            try:
                self._parser.write(data)
            except FormParserError as error:
                raise UsageError("the upload is malformed", str(error)) from None
            others += len(data) - len(self._arrived)
            if others > MOST_OTHER_BYTES:
                why = f"at most {MOST_OTHER_BYTES} bytes beside the file are taken"
                raise TooLarge("the form is too large", why)
            if self._arrived:
                yield bytes(self._arrived)
                self._arrived.clear()
        try:
            self._parser.finalize()
        except FormParserError as error:
            raise UsageError("the upload is malformed", str(error)) from None

    @property
    def filename(self) -> str:
        """Raises BadParameter where there was no file."""
        if self._filename is None:
            raise BadParameter("file", "it must be a file")
        return self._filename or "file"

    @property
    def purpose(self) -> str:
        """Raises BadParameter."""
        purpose = self._fields.get("purpose", b"").decode(errors="replace")
        if purpose not in PURPOSES:
            raise BadParameter("purpose", f"it must be one of {', '.join(PURPOSES)}")
        return purpose

    # --- what the parser finds ---

    def _begin_part(self) -> None:
        self._disposition = b""

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _begin_data(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = _text(options.get(b"name", b""))
        if b"filename" not in options:
            self._into = self._fields.setdefault(name, bytearray())
        elif name != "file" or self._filename is not None:
            raise BadParameter(name or "file", "there is one file, and its field is called file")
        else:
            self._filename, self._into = _text(options[b"filename"]), self._arrived

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self._into += data[start:end]


def _text(data: Any) -> str:
    return bytes(data).decode(errors="replace")
