"""Does loading a shard need hardly more memory than the shard?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devnet.models.unpack import ensure_model
from tests.core.engine.architectures import write_sized

MIB = 2**20
LIBRARIES_BYTES = 400 * 10**6
PROBE = """
import json, sys
from pathlib import Path

def peak():
    line = next(l for l in open("/proc/self/status") if l.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

import torch
torch.set_num_threads(1)
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange

warm, folder, start, end, numerics = sys.argv[1:]
if warm:  # modules, caches and the self-check's clone are there before anything is counted
    load_shard(Path(warm), LayerRange(1, 2), numerics=numerics, self_check=True)
before = peak()
shard = load_shard(
    Path(folder), LayerRange(int(start), int(end)), numerics=numerics, self_check=True
)
print(json.dumps({"before": before, "peak": peak(), "shard": shard.bytes}))
"""
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


def measure(folder: Path, start: int, end: int, numerics: str, warm: Path | str = "") -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(warm), str(folder), str(start), str(end), numerics],
        capture_output=True,
        text=True,
        timeout=150,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("model_type", "stored", "numerics"),
    [
        ("llama", "bfloat16", "float32"),
        ("llama", "float32", "int8-weight-only"),
        ("llama", "bfloat16", "int4-weight-only"),
        ("mixtral", "bfloat16", "float32"),
    ],
)
def test_nothing_is_held_twice_while_loading(
    model_type: str, stored: str, numerics: str, tmp_path: Path
) -> None:
    folder = write_sized(tmp_path / "sized", model_type, stored)
    warm = write_sized(tmp_path / "warm", model_type, stored, hidden=128)
    found = measure(folder, 0, 6, numerics, warm)
    one_layer = 16 * MIB if "int" in numerics else 0  # wide until its last matrix is read
    grown = found["peak"] - found["before"]
    assert found["shard"] > 20 * MIB
    assert grown <= 1.05 * found["shard"] + one_layer + 12 * MIB


@pytest.mark.model
@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_the_default_model_stays_within_its_bytes_and_the_libraries(numerics: str) -> None:
    found = measure(ensure_model(), 0, 30, numerics)
    assert found["peak"] <= 1.15 * found["shard"] + LIBRARIES_BYTES
