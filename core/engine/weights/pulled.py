"""Which tensors of a published model are on this machine?

A pulled folder has the files of the published one, each as long as the whole and with the bytes
that were asked for at their places. The rest are holes, which take no room. What was fetched and
held to its root is written down line by line; what no line names is never read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from core.engine.weights.contents import TensorFact
from core.engine.weights.manifest import MANIFEST_FILE, ModelManifest, read_manifest
from core.protocol.errors import ModelMissing
from core.protocol.whole_file import write_whole

PULLED_FILE = "headrace-pulled.txt"


class PulledFolder:
    """A folder of a published model of which some tensors are here."""

    def __init__(self, model_dir: Path) -> None:
        """Raises ModelMissing without a manifest, ModelUnsupported for a damaged one."""
        self.model_dir = Path(model_dir)
        try:
            data = (self.model_dir / MANIFEST_FILE).read_bytes()
        except FileNotFoundError:
            raise ModelMissing(
                f"{self.model_dir} is not a model folder",
                why=f"it was pulled in part and has no {MANIFEST_FILE}",
                next_step="delete it and pull the model again",
            ) from None
        self.manifest: ModelManifest = read_manifest(data)
        self._here = self._read()

    @classmethod
    def find(cls, model_dir: Path) -> PulledFolder | None:
        """The folder, if it is a pulled one."""
        return cls(model_dir) if (Path(model_dir) / PULLED_FILE).is_file() else None

    @property
    def here(self) -> frozenset[str]:
        """Names of the tensors that are here."""
        return frozenset(self._here)

    def fact(self, name: str) -> TensorFact:
        """A tensor, whether it is here or not. Raises ModelMissing for one that the model lacks."""
        try:
            return self.manifest.tensors[name]
        except KeyError:
            raise ModelMissing(f"the model has no tensor {name}") from None

    def require(self, name: str) -> None:
        """Raise ModelMissing for a tensor that is not here."""
        if name not in self._here:
            raise ModelMissing(
                f"{name} is not on this machine",
                why=f"{len(self._here)} of the model's {len(self.manifest.tensors)} tensors are",
                next_step="fetch its layers: `miner models pull NAME --layers FROM:TO`",
            )

    def note(self, names: Iterable[str]) -> None:
        """Write down that these tensors are on the disk and are the registered ones."""
        new = [name for name in names if name not in self._here]
        with (self.model_dir / PULLED_FILE).open("a", encoding="utf-8") as out:
            out.writelines(f"{name}\n" for name in new)
            out.flush()
            os.fsync(out.fileno())
        self._here.update(new)

    def forget(self, names: Iterable[str]) -> None:
        """These tensors are not what they should be: they count as not here."""
        self._here -= set(names)
        lines = "".join(f"{name}\n" for name in sorted(self._here))
        write_whole(self.model_dir / PULLED_FILE, lines.encode())

    def _read(self) -> set[str]:
        text = (self.model_dir / PULLED_FILE).read_text("utf-8", errors="replace")
        whole = text.rpartition("\n")[0]  # a line that was cut off says nothing
        return {name for name in whole.split("\n") if name in self.manifest.tensors}
