"""Where do log lines go, in which form, and what keeps secrets out of them?

Everything that logs (ours through structlog, libraries through ``logging``) goes to stderr, pretty
on a terminal and JSON otherwise, and to a JSON file per run in the state folder. Ids bound with
``bound`` appear in every line of the same task and its children.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
import time
from pathlib import Path
from typing import IO, Any, Final

import structlog
from structlog.typing import EventDict, WrappedLogger

from core.runtime.folders import make_private
from core.runtime.redact import redact

RUNS_KEPT: Final = 20
FILE_BYTES: Final = 5 * 2**20
#: Libraries that say too much at the level of ours.
_QUIETER: Final = (
    "asyncio",
    "web3",
    "urllib3",
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "hivemind",
    "filelock",
    "h11",
)
_installed: list[logging.Handler] = []

get_logger = structlog.stdlib.get_logger
bound = structlog.contextvars.bound_contextvars
bound_now = structlog.contextvars.get_contextvars


def set_up(
    program: str,
    *,
    level: str = "info",
    form: str = "auto",
    folder: Path | None = None,
    file: Path | None = None,
    stream: IO[str] | None = None,
) -> Path | None:
    """Send logs of ``level`` and above to ``stream`` (stderr), all of them to a file in ``folder``.

    ``form`` is auto, pretty or json. Returns the file of this run, None without a folder. Files of
    runs before the newest twenty are deleted. May be called again, with the ``file`` of the first
    call; the last call counts.
    """
    stream = stream or sys.stderr
    pretty = form == "pretty" or (form == "auto" and stream.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    to_json: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        redact_event,
        structlog.processors.JSONRenderer(),
    ]
    to_terminal: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        redact_event,
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty() and not os.environ.get("NO_COLOR"),
            exception_formatter=structlog.dev.plain_traceback,  # rich's prints local variables
        ),
    ]
    screen = logging.StreamHandler(stream)
    screen.setLevel(level.upper())
    screen.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=to_terminal if pretty else to_json
        )
    )
    handlers: list[logging.Handler] = [screen]
    if file is None and folder is not None:
        file = _new_file(make_private(folder), program)
    if file is not None:
        saved = _PrivateFile(file, maxBytes=FILE_BYTES, backupCount=1, encoding="utf-8")
        saved.setLevel(logging.DEBUG)
        saved.setFormatter(
            structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=to_json)
        )
        handlers.append(saved)

    root = logging.getLogger()
    for old in _installed:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        root.addHandler(handler)
    _installed[:] = handlers
    root.setLevel(logging.DEBUG if file is not None else level.upper())
    for name in _QUIETER:
        logging.getLogger(name).setLevel(logging.WARNING)

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a later call must reach loggers made before it
    )
    return file


def redact_event(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """The processor that blanks keys, passwords and tokens, in ours and in libraries' lines."""
    return {key: redact(value, key) for key, value in event.items()}


class _PrivateFile(logging.handlers.RotatingFileHandler):
    def _open(self) -> Any:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "a", encoding=self.encoding)

    def shouldRollover(self, record: logging.LogRecord) -> int:  # noqa: N802
        """Whether the file is full. The library would form each line again to learn its length."""
        is_full = os.fstat(self.stream.fileno()).st_size >= self.maxBytes if self.stream else False
        return int(is_full)


def _new_file(folder: Path, program: str) -> Path:
    runs = sorted(folder.glob(f"{program}-*.log"), key=lambda path: path.name)
    for old in runs[: max(0, len(runs) - RUNS_KEPT + 1)]:
        old.unlink(missing_ok=True)
        old.with_name(old.name + ".1").unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return folder / f"{program}-{stamp}-{os.getpid()}.log"
