"""A fleet that cannot hold the model is told what is short, by how much."""

from __future__ import annotations

from scheduler.fleet.fleet import Machine
from scheduler.fleet.shortage import shortage, too_small
from tests.scheduler.worlds import fleet_of, holding, toy_model


def test_missing_layers_and_bytes_are_stated() -> None:
    text = shortage(fleet_of(3, 3).machines, toy_model(10, embedding_bytes=100))
    assert text == "2 machines hold 4 of 10 layers: short by 6 layers, 600 bytes of weights"


def test_tables_that_fit_nowhere_are_named() -> None:
    assert "500 bytes" in shortage(fleet_of(3, 3).machines, toy_model(4, embedding_bytes=500))


def test_no_machine_at_all() -> None:
    assert "no machine" in shortage((), toy_model(4))
    text = shortage(
        (Machine("a", 60, 1.0, 1.0, weight_fraction=1.0, kv_fraction=0.0),), toy_model(4)
    )
    assert text.endswith("the largest has 60 bytes for weights, short by 40 bytes")


def test_held_but_cut_off() -> None:
    assert "connected" in shortage(fleet_of(3, 3).machines, toy_model(4))


def test_too_small_machine_has_both_numbers() -> None:
    assert (
        too_small(holding("a", 0), toy_model(4)) == "0 bytes for weights, one layer takes 100 bytes"
    )
