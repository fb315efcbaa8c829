"""Numbers of others are refused by name unless they can be counted with."""

from __future__ import annotations

import math

import pytest

from scheduler.fleet.errors import FleetError
from scheduler.fleet.numbers import check_number, check_whole


@pytest.mark.parametrize("wrong", [-1, 0, math.inf, math.nan, "1", None, [], {}, True, 10**400])
def test_what_is_no_number_in_the_range_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(FleetError, match=r"rate is .*, not a number from 1e-06 to 1e\+09"):
        check_number("rate", wrong)
    with pytest.raises(FleetError, match=r"count is .*, not a whole number from 1 to 9"):
        check_whole("count", wrong, 1, 9)


def test_the_ends_of_a_range_belong_to_it_and_a_float_is_never_whole() -> None:
    for value in (2, 2.0, 9, 9.0):
        check_number("rate", value, 2, 9)
    check_whole("count", 2, 2, 9)
    check_whole("count", 9, 2, 9)
    with pytest.raises(FleetError, match=r"count is 2\.0"):
        check_whole("count", 2.0, 2, 9)
