"""How is a call that may fail for a while repeated?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from core.protocol.errors import HeadraceError

T = TypeVar("T")
#: No wait is a billion times the first one, and a much larger power of two is no float.
_DOUBLED_AT_MOST = 30
Failures = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]


@dataclass(frozen=True)
class Backoff:
    """Waits of ``min(max_s, initial_s · factorⁿ⁻¹ + uniform(0, jitter_s))`` after the n-th failure.

    ``attempts`` and ``timeout_s`` end it, whichever comes first; None means without that end.
    """

    attempts: int | None = 6
    timeout_s: float | None = 45.0
    initial_s: float = 0.1
    max_s: float = 5.0
    jitter_s: float = 0.5
    factor: float = 2.0


def pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """Seconds to wait after so many failures in a row, any number: each time twice as long."""
    return min(first_s * 2.0 ** min(failures, _DOUBLED_AT_MOST), longest_s)


def is_retryable(error: Exception) -> bool:
    """Whether the same call may succeed later: our retryable errors, lost connections, timeouts."""
    if isinstance(error, HeadraceError):
        return error.retryable
    return isinstance(error, ConnectionError | TimeoutError)


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    on: Failures = is_retryable,
    backoff: Backoff = Backoff(),
    on_retry: Callable[[Exception], None] | None = None,
) -> T:
    """Await ``call()`` until it succeeds or ``backoff`` ends, which raises its last error.

    ``on`` is a type, a tuple of types or a predicate. ``on_retry`` sees every failure that ``on``
    accepts (to count it). Cancellation passes through at once. ``call`` must be safe to repeat.
    """
    import stamina

    def failed(error: Exception) -> bool:
        accepted = isinstance(error, on) if isinstance(on, type | tuple) else on(error)
        if accepted and on_retry is not None:
            on_retry(error)
        return accepted

    async for attempt in stamina.retry_context(
        on=failed,
        attempts=backoff.attempts,
        timeout=backoff.timeout_s,
        wait_initial=backoff.initial_s,
        wait_max=backoff.max_s,
        wait_jitter=backoff.jitter_s,
        wait_exp_base=backoff.factor,
    ):
        with attempt:
            return await call()
    raise AssertionError("stamina raises the last error itself")
