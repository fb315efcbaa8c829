"""What computes here is what is announced and registered: its kind, its memory, its speed."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core.protocol.errors import UsageError
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from miner.commands.registration import announced
from miner.compute import compute
from miner.records import machine
from miner.records.machine import compute_device, memory_limit_bytes

CARD_BYTES = 24 * 2**30


def settings(folder: Path, **flags: str) -> Settings:
    return load(environ={}, folders=Folders.at(folder), flags=flags)


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver and a card of 24 GiB, as torch tells of them."""
    driver = tmp_path / "driver"
    driver.touch()
    monkeypatch.setattr(machine, "_DRIVERS", (str(driver),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    has = SimpleNamespace(name="Card 4090", total_memory=CARD_BYTES)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: has)


def test_a_machine_without_a_driver_computes_on_its_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_DRIVERS", ())

    def loaded(wanted: str) -> Any:
        raise AssertionError("nothing needs torch here")

    monkeypatch.setattr(machine, "_accelerator", loaded)
    for wanted in ("auto", "cpu"):
        found = compute_device(wanted)
        assert (found.name, found.kind) == ("cpu", "cpu") and found.memory_bytes > 2**28


@pytest.mark.usefixtures("card")
def test_a_card_is_what_is_announced_and_not_the_box_around_it(tmp_path: Path) -> None:
    found = compute_device()
    assert (found.name, found.kind, found.title) == ("cuda", "cuda", "Card 4090")
    assert memory_limit_bytes(settings(tmp_path)) == int(0.9 * CARD_BYTES)
    less = settings(tmp_path, **{"miner.memory_limit": "8GiB"})
    assert memory_limit_bytes(less) == 8 * 2**30
    more = settings(tmp_path, **{"miner.memory_limit": "64GiB"})
    assert memory_limit_bytes(more) == int(0.9 * CARD_BYTES), "that is the box's, not the card's"
    assert compute_device("cuda:1").name == "cuda:1"
    on_processor = settings(tmp_path, **{"engine.device": "cpu", "miner.memory_limit": "64GiB"})
    assert memory_limit_bytes(on_processor) == 64 * 2**30
    for other in ("cuda:2", "cuda:x"):
        with pytest.raises(UsageError, match=f"no device '{other}'"):
            compute_device(other)


@pytest.mark.usefixtures("card")
def test_what_is_registered_is_of_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "benchmark_device", lambda device, numerics: (80.0, 900.5))
    kind, memory_mib, bandwidth_mb_s, _ = announced(settings(tmp_path))
    assert (bytes.fromhex(kind[2:]), memory_mib) == (b"cuda", int(0.9 * CARD_BYTES) // 2**20)
    assert bandwidth_mb_s == 900_500
    kind, *_ = announced(settings(tmp_path, **{"engine.device": "cpu"}))
    assert bytes.fromhex(kind[2:]) == b"cpu\0"


@pytest.mark.usefixtures("card")
def test_several_cards_are_one_machine_with_the_memory_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (CARD_BYTES, CARD_BYTES // 2)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda number: SimpleNamespace(name=f"Card {number}", total_memory=sizes[number]),
    )
    both = settings(tmp_path, **{"engine.device": "cuda:0, cuda:1"})
    found = compute_device(both.engine.device)
    assert (found.name, found.kind, found.title) == ("cuda,cuda:1", "cuda", "Card 0 + Card 1")
    assert memory_limit_bytes(both) == int(0.9 * 1.5 * CARD_BYTES)
    assert found.shares(3000) == [("cuda", 2000), ("cuda:1", 1000)]
    assert compute_device("cuda").shares(3000) == [("cuda", 3000)]
    # A step goes through both: two thirds of it at one speed, a third at the other.
    speed = {"cuda": (80.0, 900.0), "cuda:1": (40.0, 450.0)}
    monkeypatch.setattr(compute, "benchmark_device", lambda device, numerics: speed[device])
    teraflops, gigabytes_s = compute.benchmark_devices(found.shares(3000))
    assert (teraflops, gigabytes_s) == (pytest.approx(60.0), pytest.approx(675.0))
    kind, memory_mib, bandwidth_mb_s, _ = announced(both)
    assert (bytes.fromhex(kind[2:]), bandwidth_mb_s) == (b"cuda", 675_000)
    assert memory_mib == int(0.9 * 1.5 * CARD_BYTES) // 2**20
    for wanted in ("cuda:0,cuda:0", "cuda,cpu", "cpu,cpu"):
        with pytest.raises(UsageError, match="cannot compute as one device"):
            compute_device(wanted)
    with pytest.raises(UsageError, match="no device 'cuda:2'"):
        compute_device("cuda:0,cuda:2")


@pytest.mark.usefixtures("card")
def test_rocms_devices_have_a_class_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert (compute_device().name, compute_device().kind) == ("cuda", "rocm")


def test_apples_memory_is_what_its_driver_recommends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_DRIVERS", ())
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 2**34)
    found = compute_device()
    assert (found.name, found.kind, found.memory_bytes) == ("mps", "mps", 2**34)


@pytest.mark.parametrize("wanted", ["cuda", "mps", "xla", "cuda:x"])
def test_a_device_that_is_not_here_is_refused(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no device") as refused:
        compute_device(wanted)
    assert "engine.device" in refused.value.why


def test_a_driver_without_a_torch_for_it_computes_on_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "driver"
    driver.touch()
    monkeypatch.setattr(machine, "_DRIVERS", (str(driver),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compute_device().is_processor


def test_the_speed_is_the_devices() -> None:
    for numerics in ("float32", "int8-weight-only-bfloat16"):
        teraflops, gigabytes_s = compute.benchmark_device("cpu", numerics)
        assert teraflops > 1e-4 and gigabytes_s > 1e-2
