"""Lots fall as often as the rate says, by no party's choice, and the same again with the secret."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.money.lottery import FULL_BPS, commitment, is_drawn

JOB, OTHER = "0x" + "0b" * 32, "0x" + "0c" * 32


def beacon(number: int) -> str:
    return f"0x{number:064x}"


def test_share_of_drawn_requests_is_the_rate() -> None:
    secret, jobs = b"s" * 32, [beacon(n) for n in range(100)]
    for rate in (0, 200, 2_000, FULL_BPS):
        fell = sum(is_drawn(secret, beacon(1), job, r, rate) for job in jobs for r in range(40))
        expected = 4000 * rate / FULL_BPS
        assert abs(fell - expected) <= 4 * (expected * (1 - rate / FULL_BPS)) ** 0.5


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**32 - 1), st.integers(0, FULL_BPS))
def test_higher_rates_draw_what_lower_ones_drew(secret: bytes, request: int, rate: int) -> None:
    drawn = [is_drawn(secret, beacon(9), JOB, request, r) for r in (rate, FULL_BPS)]
    assert drawn == sorted(drawn)
    assert drawn[1], "everything is drawn at 100 %"
    assert not is_drawn(secret, beacon(9), JOB, request, 0)


def test_lot_depends_on_secret_block_job_and_request() -> None:
    def lots(secret: bytes = b"s" * 32, at: int = 1, job: str = JOB) -> list[bool]:
        return [is_drawn(secret, beacon(at), job, r, 5_000) for r in range(64)]

    assert lots() == lots()
    assert len({tuple(x) for x in (lots(), lots(b"t" * 32), lots(at=2), lots(job=OTHER))}) == 4
    assert commitment(b"s" * 32) != commitment(b"t" * 32)


def test_lots_are_those_of_the_published_formula() -> None:
    """Computed with `openssl dgst -mac hmac` and `sha256sum` from the text of docs/trust.md §9."""
    secret = bytes(range(32))
    assert commitment(secret) == COMMITTED
    assert [r for r in range(40) if is_drawn(secret, beacon(7), JOB, r, 1_000)] == DRAWN


COMMITTED = "0x732fef41ce9ec409550c01260abf02d24f95cb3ed66d1d2e213b1c32ee265fad"
DRAWN = [6, 25, 32, 34, 35]
