"""How long does it take to hash a model's files and tensors, and how much memory?"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.models.random_llama import write_random_llama
from benchmarks.table import Row
from core.engine.weights.contents import CONTENTS_FILE, contents_of

REACH, SPARE_MIB, TRIES = 2.0, 500, 3
LAYERS, HIDDEN, FFN = 28, 1024, 2816
QUICK = {"TRIES": 1, "LAYERS": 2, "HIDDEN": 128, "FFN": 256}
_MIB = 2**20
_HASH = """
import json, re, sys, time
from pathlib import Path
from core.engine.weights.contents import contents_of
began = time.perf_counter()
contents_of(Path(sys.argv[1]))
took = time.perf_counter() - began
# Of this program alone: what getrusage says, a program has from who started it.
peak_kib = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(json.dumps([took, int(peak_kib) * 1024]))
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="headrace-publishing-") as name:
        folder = write_random_llama(Path(name), layers=LAYERS, hidden=HIDDEN, ffn=FFN)
        files = sorted(folder.glob("*.safetensors"))
        largest = max(t.size_bytes for t in contents_of(folder).tensors.values())
        ours, peers, peak = [], [], 0
        for _ in range(TRIES):
            began = time.perf_counter()
            subprocess.run(["sha256sum", *files], check=True, stdout=subprocess.DEVNULL)
            peers.append(time.perf_counter() - began)
            (folder / CONTENTS_FILE).unlink()
            said = subprocess.run(
                [sys.executable, "-c", _HASH, str(folder)],
                check=True,
                capture_output=True,
                text=True,
            )
            took, used = json.loads(said.stdout)
            ours.append(took)
            peak = max(peak, used)
        size = sum(file.stat().st_size for file in files)
    ratio, limit = min(ours) / min(peers), largest + SPARE_MIB * _MIB
    return [
        Row(
            f"publishing {size / 1e9:.1f} GB: every file and tensor hashed",
            f"<= {REACH:g} of sha256sum",
            f"{ratio:.2f}: {min(ours):.2f} s",
            f"sha256sum {min(peers):.2f} s",
            "",
            ratio <= REACH,
        ),
        Row(
            "publishing: memory at most",
            f"<= largest tensor + {SPARE_MIB} MiB = {limit / _MIB:,.0f} MiB",
            f"{peak / _MIB:,.0f} MiB",
            "",
            "",
            peak <= limit,
        ),
    ]
