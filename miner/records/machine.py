"""What does this machine have? A tensor library is loaded only where a graphics processor is."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from core.protocol.errors import UsageError
from core.runtime.settings import Settings

_COPY_BYTES = 64 * 2**20
_ROUNDS = 3
#: One of these is there where a driver of a graphics processor is.
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
#: Of a graphics processor's memory, what a miner may use: its driver needs some.
_USABLE = 0.9


@dataclass(frozen=True)
class ComputeDevice:
    """What computes here.

    `name` is torch's for it, `kind` the registry's class of it: cpu, cuda, rocm or mps. Several
    `parts` of one kind that hold a shard together have their names with commas between them, and
    the memory of all.
    """

    name: str
    kind: str
    title: str
    memory_bytes: int
    parts: tuple[ComputeDevice, ...] = ()

    @property
    def is_processor(self) -> bool:
        return self.kind == "cpu"

    def shares(self, memory_bytes: int) -> list[tuple[str, int]]:
        """What each device, by its name, is to use of so much memory in all."""
        return [
            (part.name, memory_bytes * part.memory_bytes // self.memory_bytes)
            for part in self.parts or (self,)
        ]


def compute_device(wanted: str = "auto") -> ComputeDevice:
    """The device of this name; auto: a graphics processor if there is one, else the processor.

    Names with commas between them, such as `cuda:0,cuda:1`, are of several that compute as one.
    Raises UsageError for a device that is not here, and for several that are no such set.
    """
    if "," in wanted:
        return _several([compute_device(one.strip()) for one in wanted.split(",")], wanted)
    may_have = any(Path(driver).exists() for driver in _DRIVERS) or _is_apple()
    if wanted == "cpu" or (wanted == "auto" and not may_have):
        return _processor()
    found = _accelerator(wanted)
    if found is None and wanted == "auto":
        return _processor()
    if found is None:
        raise UsageError(
            f"this machine has no device '{wanted}'",
            why="engine.device names it, and torch finds none",
            next_step="leave engine.device at auto, or install the torch that drives this device",
        )
    return found


def _several(parts: list[ComputeDevice], wanted: str) -> ComputeDevice:
    first = parts[0]
    is_mixed = any(part.kind != first.kind for part in parts)
    if is_mixed or first.is_processor or len({part.name for part in parts}) < len(parts):
        raise UsageError(
            f"'{wanted}' cannot compute as one device",
            why="they are to be different graphics processors of one kind, named one by one",
            next_step="set engine.device to such as cuda:0,cuda:1",
        )
    titles = " + ".join(part.title for part in parts)
    memory_bytes = sum(part.memory_bytes for part in parts)
    return ComputeDevice(
        ",".join(part.name for part in parts), first.kind, titles, memory_bytes, tuple(parts)
    )


def _processor() -> ComputeDevice:
    whole_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ComputeDevice("cpu", "cpu", platform.processor() or platform.machine(), whole_bytes)


def _is_apple() -> bool:
    return platform.system() == "Darwin" and platform.machine() == "arm64"


def _accelerator(wanted: str) -> ComputeDevice | None:
    """That one, or the first that torch finds."""
    import torch

    if wanted.partition(":")[0] in ("auto", "cuda") and torch.cuda.is_available():
        which = wanted.partition(":")[2] or "0"
        number = int(which) if which.isdecimal() else torch.cuda.device_count()
        if number >= torch.cuda.device_count():
            return None
        has = torch.cuda.get_device_properties(number)
        kind = "rocm" if torch.version.hip else "cuda"  # ROCm's devices have CUDA's names
        name = f"cuda:{number}" if number else "cuda"
        return ComputeDevice(name, kind, has.name, has.total_memory)
    if wanted in ("auto", "mps") and torch.backends.mps.is_available():
        return ComputeDevice("mps", "mps", "Apple", torch.mps.recommended_max_memory())
    return None


def memory_limit_bytes(settings: Settings) -> int:
    """What the owner lets a miner use of the memory of the device that computes.

    `miner.memory_limit`, else half of a machine's memory, or nine tenths of a graphics processor's;
    never more than that has. Of several devices it is of all together. Raises UsageError as
    `compute_device`.
    """
    device, allowed = compute_device(settings.engine.device), settings.miner.memory_limit_bytes
    if device.is_processor:
        return allowed or device.memory_bytes // 2
    return min(allowed or device.memory_bytes, int(device.memory_bytes * _USABLE))


def held_up_s(thread: int) -> float:
    """Seconds that a thread, by its native id, was ready without a processor; 0 if untold."""
    try:  # a Path takes thrice as long, and every ping asks
        file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
    except OSError:
        return 0.0
    try:
        return int(os.read(file, 128).split()[1]) / 1e9
    finally:
        os.close(file)


def copy_bandwidth_mb_s() -> int:
    """Megabytes per second at which memory is copied, the best of a few tries."""
    source, target = bytearray(_COPY_BYTES), bytearray(_COPY_BYTES)
    best_s = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        target[:] = source
        best_s = min(best_s, time.perf_counter() - started)
    return int(_COPY_BYTES / best_s / 1e6)
