"""Which machines does a devnet have, how slow are they, and how far away?"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from core.engine.weights.shape import describe_model
from core.protocol import units
from core.protocol.errors import UsageError
from core.protocol.types import LayerRange
from devnet.accounts import PARTIES, SPARE_PARTIES
from devnet.links.conditions import Conditions
from devnet.network import HETEROGENEOUS, MinerProfile

MACHINES = tuple(name for name in (*PARTIES, *SPARE_PARTIES) if name.startswith("miner-"))
MBIT_S = 125_000  # bytes per second
MIB = 2**20
NAMED = ("hetero", "equal")
#: What all stages hold of SmolLM2-135M in float32, for which the three unequal machines are made.
USUAL_BYTES = 651_300_000


@dataclass(frozen=True)
class DevnetFleet:
    """Machines by the name of their party, and the link to each that is far away."""

    machines: Mapping[str, MinerProfile]
    links: Mapping[str, Conditions] = field(default_factory=dict)

    def first(self, count: int | None) -> DevnetFleet:
        """The first machines of it. Raises UsageError where it has not so many."""
        if count is None:
            return self
        if count > len(self.machines):
            raise UsageError(f"{count} miners", f"this fleet has {len(self.machines)}")
        names = list(self.machines)[:count]
        return DevnetFleet(
            {name: self.machines[name] for name in names},
            {name: link for name, link in self.links.items() if name in names},
        )

    def save(self, file: Path) -> None:
        """Twin of `load`."""
        machines = {name: asdict(machine) for name, machine in self.machines.items()}
        links = {name: asdict(link) for name, link in self.links.items()}
        file.write_text(json.dumps({"machines": machines, "links": links}, indent=1) + "\n")

    @classmethod
    def load(cls, file: Path) -> DevnetFleet:
        """The fleet of a devnet that runs or ran, by default the three unequal machines."""
        if not file.is_file():
            return cls(HETEROGENEOUS)
        return msgspec.json.decode(file.read_bytes(), type=cls)


class _DevnetMachine(msgspec.Struct, forbid_unknown_fields=True):
    memory: str
    slow_ms_per_layer: float = 0.0
    layers: str | None = None
    region: str | None = None


class _Region(msgspec.Struct, forbid_unknown_fields=True):
    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    mbit_s: float = 0.0


class _File(msgspec.Struct, forbid_unknown_fields=True):
    machines: dict[str, _DevnetMachine]
    regions: dict[str, _Region] = {}


def fleet_of(said: str, model_dir: Path) -> DevnetFleet:
    """The fleet that `hetero`, `equal` or a file's name means, for the model in a folder.

    Named fleets have memory in proportion to what the model needs. Raises UsageError,
    ModelUnsupported.
    """
    if said in NAMED:
        share = round(need_bytes(model_dir) / USUAL_BYTES, 2)
        sizes = {n: units.parse_bytes(m.memory) * share for n, m in HETEROGENEOUS.items()}
        if said == "equal":
            mean = sum(sizes.values()) / len(sizes)
            return DevnetFleet({name: MinerProfile(_mib(mean)) for name in sizes})
        return DevnetFleet(
            {
                name: MinerProfile(_mib(sizes[name]), machine.slow_ms_per_layer)
                for name, machine in HETEROGENEOUS.items()
            }
        )
    file = Path(said).expanduser()
    if not file.is_file():
        why = f"it is {', '.join(NAMED)}, or a file in TOML or JSON"
        raise UsageError(f"there is no fleet '{said}'", why)
    try:
        text = file.read_text(encoding="utf-8")
        raw = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
        return _fleet(msgspec.convert(raw, _File))
    except (OSError, ValueError) as error:  # msgspec's, json's and tomllib's are ValueErrors
        raise UsageError(f"{file} is not a fleet", str(error)) from None


def need_bytes(model_dir: Path) -> int:
    """Weights that all stages of one pipeline hold together, as float32."""
    shape = describe_model(model_dir)
    return sum(shape.layers_bytes) + shape.embed_bytes + shape.head_bytes


def _mib(size: float) -> str:
    return f"{round(size / MIB)}MiB"


def _fleet(said: _File) -> DevnetFleet:
    """Raises UsageError for machines without a wallet, and for what no machine can be."""
    strangers = [name for name in said.machines if name not in MACHINES]
    if strangers or not said.machines:
        what = f"machine '{strangers[0]}' has no wallet" if strangers else "there are no machines"
        raise UsageError(what, f"they are {', '.join(MACHINES)}")
    machines, links = {}, {}
    for name, machine in said.machines.items():
        units.parse_bytes(machine.memory)
        if machine.slow_ms_per_layer < 0:
            raise UsageError(f"{name} cannot be {machine.slow_ms_per_layer} ms slower")
        layers = None if machine.layers is None else _layers(name, machine.layers)
        machines[name] = MinerProfile(machine.memory, machine.slow_ms_per_layer, layers=layers)
        if machine.region is not None:
            links[name] = _link(name, machine.region, said.regions)
    return DevnetFleet(machines, links)


def _layers(name: str, text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+):(\d+)", text)
    try:
        if found is not None:
            span = LayerRange(int(found[1]), int(found[2]))
            return span.start, span.end
    except ValueError:
        pass
    raise UsageError(f"the layers of {name} cannot be '{text}'", "they are A:B with A < B")


def _link(name: str, region: str, regions: Mapping[str, _Region]) -> Conditions:
    if region not in regions:
        why = f"there are {', '.join(regions) or 'none'}"
        raise UsageError(f"{name} is in region '{region}'", why)
    there = regions[region]
    return Conditions(there.latency_ms, there.jitter_ms, there.mbit_s * MBIT_S)
