"""What went wrong in this process that nobody was told of?"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

#: Of one alarm, what is kept of it, and alarms that are kept.
_MOST_CHARACTERS, _MOST_HEARD = 1_500, 50


class Alarms(logging.Handler):
    """Lines that programs log as errors, and exceptions that no task, thread or object took."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._heard: list[str] = []

    def take(self) -> list[str]:
        """What was heard since the last time."""
        heard, self._heard = self._heard, []
        return heard

    def collect(self) -> None:
        """Have tasks that are lost say now what nobody asked them for."""
        gc.collect()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside, alarms of this thread's event loop and of the process are heard."""
        loop, root = asyncio.get_running_loop(), logging.getLogger()
        hooks = loop.get_exception_handler(), sys.unraisablehook, threading.excepthook
        configured = structlog.get_config() if structlog.is_configured() else None
        structlog.configure(
            processors=[self._logged],
            wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
            cache_logger_on_first_use=False,
        )
        loop.set_exception_handler(lambda _, context: self._of_loop(context))
        sys.unraisablehook = lambda lost: self._note(f"{lost.err_msg}", lost.exc_value)
        threading.excepthook = lambda lost: self._note("a thread ended", lost.exc_value)
        root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)
            loop.set_exception_handler(hooks[0])
            sys.unraisablehook, threading.excepthook = hooks[1:]
            structlog.reset_defaults()
            if configured is not None:
                structlog.configure(**configured)

    def emit(self, record: logging.LogRecord) -> None:
        self._note(record.getMessage(), record.exc_info[1] if record.exc_info else None)

    def _logged(self, logger: Any, method: str, event: Any) -> Any:
        error = sys.exc_info()[1] if event.pop("exc_info", None) else None
        self._note(f"{event}", error)
        raise structlog.DropEvent

    def _of_loop(self, context: dict[str, Any]) -> None:
        self._note(str(context["message"]), context.get("exception"))

    def _note(self, what: str, error: BaseException | None) -> None:
        if error is not None:
            what += "\n" + "".join(traceback.format_exception(error)[-6:])
        if len(self._heard) < _MOST_HEARD:
            self._heard.append(what[-_MOST_CHARACTERS:])
