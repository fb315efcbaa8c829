"""Events count once, whatever order they come in, and a machine's earlier life says nothing about
it.
"""

from __future__ import annotations

import math

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Links
from scheduler.live.churn import SKEW_MS, Cluster, Joined, Left, Reported, Ticked, observe
from tests.scheduler.worlds import holding, toy_model

NOW = 100_000


def cluster(layers: int = 6) -> Cluster:
    return Cluster(toy_model(layers), Links(default_ms=1.0))


def joined(machine_id: str = "a", incarnation: int = 1, at_ms: int = NOW) -> Joined:
    return Joined(holding(machine_id, 6), incarnation, at_ms)


def test_join_counts_once_and_a_later_life_replaces_an_earlier_one() -> None:
    once, why = observe(cluster(), joined(), NOW)
    assert why == "" and once.version == 1
    assert observe(once, joined(), NOW) == (once, "known")
    assert observe(once, joined(incarnation=0), NOW) == (once, "late")
    again, why = observe(once, joined(incarnation=2, at_ms=NOW + 1), NOW + 1)
    assert why == "" and again.members["a"].incarnation == 2
    assert observe(again, Left("a", 1, NOW + 2), NOW + 2) == (again, "another incarnation")


def test_returned_machine_holds_nothing_until_it_says_so() -> None:
    first, _ = observe(cluster(), Joined(holding("a", 6), 1, NOW, LayerRange(0, 6)), NOW)
    assert first.placement and first.serving
    back, _ = observe(first, joined(incarnation=2), NOW)
    assert back.placement == () and back.serving == ()


def test_departure_counts_once_and_the_silent_may_come_back() -> None:
    here, _ = observe(cluster(), joined(), NOW)
    gone, why = observe(here, Left("a", 1, NOW + 5), NOW + 5)
    assert why == "" and not gone.members
    assert observe(gone, Left("a", 1, NOW + 6), NOW + 6) == (gone, "unknown machine")
    assert observe(gone, joined(at_ms=NOW + 5), NOW + 6) == (gone, "late")
    assert observe(gone, joined(incarnation=0, at_ms=NOW + 9), NOW + 9) == (gone, "late")
    back, why = observe(gone, joined(at_ms=NOW + 7), NOW + 7)
    assert why == "" and "a" in back.members and not back.gone


def test_departure_from_before_the_join_is_late() -> None:
    here, _ = observe(cluster(), joined(), NOW)
    assert observe(here, Left("a", 1, NOW - 1), NOW) == (here, "late")


def test_late_and_absurd_reports_change_nothing() -> None:
    here, _ = observe(cluster(), joined(), NOW)
    fresh, why = observe(here, Reported("a", 1, NOW + 2, None, 3.0), NOW + 2)
    assert why == "" and fresh.members["a"].machine.tau_ms_per_layer == 3.0
    assert observe(fresh, Reported("a", 1, NOW + 1, None, 9.0), NOW + 3) == (fresh, "late")
    for tau_ms, batch in ((math.nan, 1), (-1.0, 1), (math.inf, 1), (1e5, 1), (1e-5, 1), (1.0, 0)):
        report = Reported("a", 1, NOW + 4, None, tau_ms, batch)
        assert observe(fresh, report, NOW + 4) == (fresh, "absurd")
    beyond = Reported("a", 1, NOW + 4, LayerRange(0, 7))
    assert observe(fresh, beyond, NOW + 4) == (fresh, "absurd")
    future = Ticked(NOW + SKEW_MS + 1)
    assert observe(fresh, future, NOW) == (fresh, "from the future")


def test_report_without_news_is_no_new_version() -> None:
    here, _ = observe(cluster(), joined(), NOW)
    heard, why = observe(here, Reported("a", 1, NOW + 1, None), NOW + 1)
    assert why == "" and heard.version == here.version
    assert heard.members["a"].heard_ms == NOW + 1


def test_claim_beyond_the_model_is_void() -> None:
    here, _ = observe(cluster(), Joined(holding("a", 9), 1, NOW, LayerRange(0, 9)), NOW)
    assert here.placement == ()
