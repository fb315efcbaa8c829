"""How many bytes does a machine with some of the layers fetch?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.models.random_llama import write_random_llama
from benchmarks.table import Row
from core.engine.weights.manifest import MANIFEST_FILE
from core.engine.weights.pulled import PULLED_FILE, PulledFolder
from core.models.publication import publication_of, write_manifest
from tests.core.models.hub_server import running_hub

REACH = 1.02
LAYERS, HELD, HIDDEN, FFN = 30, 3, 512, 1408
QUICK = {"LAYERS": 4, "HELD": 1, "HIDDEN": 128, "FFN": 256}
#: As a miner's daemon does on its start, through the hub's own client.
_PULL = """
import sys
from pathlib import Path
from core.engine.weights.manifest import MANIFEST_FILE, MOST_MANIFEST_BYTES, read_manifest
from core.engine.weights.pulled import PulledFolder
from core.models.places import place_of
from core.models.pull import begin, layers_of, pull, pull_small_files
from core.protocol.types import LayerRange
place, folder = place_of("hf://maker/random@main"), Path(sys.argv[1])
manifest = read_manifest(place.whole(MANIFEST_FILE, MOST_MANIFEST_BYTES), sys.argv[2])
begin(manifest, folder)
pull_small_files(manifest, folder, [place])
layers = LayerRange(int(sys.argv[3]), int(sys.argv[4]))
pull(PulledFolder(folder), layers_of(folder, manifest, layers), [place])
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="headrace-pulling-") as name:
        source, target = Path(name) / "source", Path(name) / "target"
        write_random_llama(source, layers=LAYERS, hidden=HIDDEN, ffn=FFN)
        published = publication_of(source)
        write_manifest(published)
        with running_hub(maker__random=source) as hub:
            env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
            env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(Path(name) / "hub")}
            first = str((LAYERS - HELD) // 2)
            last = str((LAYERS - HELD) // 2 + HELD)
            hashed = published.spec.manifest_hash
            argv = [sys.executable, "-c", _PULL, str(target), hashed, first, last]
            subprocess.run(argv, check=True, env=env)
            fetched = hub.sent_bytes
        pulled = PulledFolder(target)
        tensors = sum(pulled.fact(name).size_bytes for name in pulled.here)
        needed = tensors + (source / MANIFEST_FILE).stat().st_size
        on_disk = sum(f.stat().st_blocks * 512 for f in target.iterdir() if f.name != PULLED_FILE)
    ratio = fetched / needed
    return [
        Row(
            f"{HELD} of {LAYERS} layers, pulled from a hub",
            f"<= {REACH:g} of their tensors and the manifest",
            f"{ratio:.4f}: {fetched / 2**20:.2f} MiB",
            "",
            f"{needed / 2**20:.2f} MiB; {on_disk / 2**20:.2f} on the disk",
            ratio <= REACH,
        )
    ]
