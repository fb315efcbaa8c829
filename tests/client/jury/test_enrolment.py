"""A juror's stake goes on the roll when it is mature, once, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from client.jury.enrolment import enrol_if_due
from core.protocol.errors import ContractRefused
from tests.clocks import ManualClock
from tests.town.chain import FakeChain
from tests.town.orders import key

ME = key(70)
LEAST = 50


class Roll(FakeChain):
    """A chain whose jury takes every enrolment."""

    def __init__(self) -> None:
        super().__init__(ManualClock(1000), blocks=8)
        self.answers["JuryArbitrator.minJurorStake"] = LEAST

    def _apply(self, sender: str, function: str, args: tuple[Any, ...]) -> tuple[str, Any]:
        assert (function, args) == ("enrol", (ME.address,))
        return function, {}


def juror(*, place: int = 0, stake: int = LEAST, matures_at: int = 1000) -> dict[str, Any]:
    return {"place": place, "stake": stake, "maturesAt": matures_at}


@pytest.mark.parametrize(
    ("found", "wall_s", "waits", "calls"),
    [
        (juror(), 0, False, ["enrol"]),
        (juror(matures_at=1001), 1000, True, []),
        (juror(matures_at=1001), 1001, False, ["enrol"]),  # no block has come meanwhile
        (juror(place=1), 2000, False, []),
        (juror(stake=LEAST - 1), 2000, False, []),
    ],
)
async def test_who_is_due_is_enrolled(
    found: dict[str, Any], wall_s: int, waits: bool, calls: list[str]
) -> None:
    chain = Roll()
    assert await enrol_if_due(chain, ME, found, wall_s) is waits
    assert chain.called == calls


@pytest.mark.parametrize(("error", "waits"), [("StakeImmature", True), ("AlreadyEnrolled", False)])
async def test_a_refusal_is_tried_again_unless_another_was_faster(error: str, waits: bool) -> None:
    chain = Roll()
    chain.refusals["enrol"] = ContractRefused("refused", error=error)
    assert await enrol_if_due(chain, ME, juror(), 0) is waits
