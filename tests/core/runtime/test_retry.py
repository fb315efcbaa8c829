"""Is a failing call repeated as long as it should be and no longer?"""

import asyncio

import pytest

from core.protocol.errors import ChainUnreachable, ContractRefused
from core.runtime.retry import Backoff, is_retryable, pause_s, retry

FOREVER = Backoff(attempts=None, timeout_s=None, max_s=30.0, jitter_s=2.0)
IMMEDIATE = Backoff(attempts=3, timeout_s=None, initial_s=0.0, max_s=0.0, jitter_s=0.0)


class Flaky:
    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.calls = 0

    async def __call__(self):
        self.calls += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def test_a_call_is_repeated_until_it_succeeds_and_each_failure_is_seen():
    seen = []
    call = Flaky(ChainUnreachable("a"), ConnectionResetError(), 7)
    assert await retry(call, backoff=IMMEDIATE, on_retry=seen.append) == 7
    assert [type(error) for error in seen] == [ChainUnreachable, ConnectionResetError]


async def test_the_last_error_is_raised_when_attempts_are_used_up():
    call = Flaky(*(ChainUnreachable(str(n)) for n in range(9)))
    with pytest.raises(ChainUnreachable, match="2"):
        await retry(call, backoff=IMMEDIATE)
    assert call.calls == 3


@pytest.mark.parametrize("error", [ContractRefused("x", error="E"), ValueError(), KeyError()])
async def test_what_will_not_change_is_not_repeated(error):
    call = Flaky(error, 1)
    with pytest.raises(type(error)):
        await retry(call, backoff=IMMEDIATE)
    assert call.calls == 1


@pytest.mark.parametrize("on", [ValueError, (ValueError, KeyError), lambda e: "x" in str(e)])
async def test_the_caller_may_say_what_is_worth_repeating(on):
    assert await retry(Flaky(ValueError("x"), 1), on=on, backoff=IMMEDIATE) == 1


async def test_time_ends_it_too():
    call = Flaky(*(TimeoutError() for _ in range(1000)))
    with pytest.raises(TimeoutError):
        await retry(
            call,
            backoff=Backoff(
                attempts=None, timeout_s=0.05, initial_s=0.01, max_s=0.01, jitter_s=0.0
            ),
        )
    assert 1 < call.calls < 50


async def test_cancellation_passes_through():
    task = asyncio.create_task(retry(asyncio.Event().wait, on=Exception, backoff=FOREVER))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_refusals_are_not_retryable_and_lost_connections_are():
    assert is_retryable(ChainUnreachable("x"))
    assert is_retryable(TimeoutError())
    assert not is_retryable(ContractRefused("x", error="E"))
    assert not is_retryable(ValueError())


@pytest.mark.parametrize(
    ("failures", "waits_s"), [(0, 0.5), (1, 1.0), (4, 8.0), (6, 30.0), (1024, 30.0), (10**9, 30.0)]
)
def test_a_pause_doubles_up_to_the_longest_however_often_it_failed(failures, waits_s):
    assert pause_s(failures, 0.5, 30.0) == waits_s
