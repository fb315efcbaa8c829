"""What does a publisher promise of a model folder? Its manifest, and its specification."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.dispute.trace.families import FP32_PROFILE
from core.engine.model.config_facts import read_config
from core.engine.weights.manifest import FORMAT, MANIFEST_FILE, ModelManifest, ToleranceBasis
from core.engine.weights.shape import describe_model
from core.engine.weights.weights import known_contents, weight_roots
from core.protocol import signing
from core.protocol.errors import ModelUnsupported
from core.protocol.types import ModelSpec
from core.protocol.whole_file import write_whole

if TYPE_CHECKING:
    from core.dispute.play.program import ModelProgram
    from core.dispute.trace.program import Tolerance

#: What machines compute in that a dispute can be about.
JUDGED_NUMERICS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Publication:
    """A model folder as it is published."""

    folder: Path
    manifest: ModelManifest
    spec: ModelSpec
    roots: tuple[bytes, ...]  # of embedding, layers and head
    program: ModelProgram | None

    @property
    def model_id(self) -> str:
        """What the chain calls it, 0x-hex."""
        return signing.model_id(self.spec)


def publication_of(
    folder: Path,
    *,
    licence: str = "",
    numerics: str = "float32",
    program: ModelProgram | None = None,
) -> Publication:
    """A folder as it would be published, with the operator program that disputes are about, if any.

    Hashes what was not hashed. The head is charged as many layer units as its weights take layers'
    worth; the embedding, a look-up, counts one. Raises ModelMissing or ModelUnsupported.
    """
    shape, weights = describe_model(folder, numerics), weight_roots(folder)
    contents = known_contents(folder)
    profile = program.numerics_profile if program else signing.name_hash(FP32_PROFILE)
    manifest = ModelManifest(
        format=FORMAT,
        licence=licence or stated_licence(folder),
        numerics=numerics,
        numerics_profile=profile,
        program=program.program.to_bytes() if program else b"",
        sigma=_sigma_bytes(program) if program else b"",
        calibration=_measured(shape.architecture, numerics) if program else [],
        files=contents.files,
        tensors=contents.tensors,
        values=contents.values,
    )
    spec = ModelSpec(
        architecture=signing.name_hash(shape.architecture),
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        ffn=shape.ffn,
        vocab=shape.vocab,
        context=shape.context,
        embed_units=1,
        head_units=min(255, max(1, round(shape.head_bytes / shape.layer_bytes))),
        dtype=signing.name_hash(numerics),
        numerics_profile=profile,
        weights_root=weights.weights_root,
        manifest_hash=manifest.hash(),
    )
    return Publication(Path(folder), manifest, spec, tuple(weights.parts), program)


def program_to_publish(
    folder: Path, numerics: str = "float32", tolerances: Sequence[Tolerance] | None = None
) -> ModelProgram | None:
    """The operator program that a folder is published with, by default as calibrated here.

    None where no program describes the model: its disputes are the jury's. Raises ModelUnsupported
    for numerics that no program knows.
    """
    from core.dispute.play.program import has_program, model_program
    from core.dispute.registration.calibrated import calibrated
    from core.dispute.trace.families import BF16_PLEA, FP32_PLEA

    if not has_program(folder):
        return None
    if numerics not in JUDGED_NUMERICS:
        raise ModelUnsupported(
            f"no operator program computes in {numerics}",
            why="programs are written in " + " and ".join(JUDGED_NUMERICS),
            next_step="publish it in one of them, or without a program, for juries alone",
        )
    architecture = describe_model(folder).architecture
    given = calibrated(architecture, numerics) if tolerances is None else tolerances
    return model_program(folder, given, plea=BF16_PLEA if numerics == "bfloat16" else FP32_PLEA)


def stated_licence(folder: Path) -> str:
    """The licence that a folder's README states at its top, "" where it states none."""
    try:
        lines = (Path(folder) / "README.md").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    if not lines or lines[0].strip() != "---":
        return ""
    stated = {}
    for line in lines[1:200]:
        if line.strip() == "---":
            break
        key, colon, value = line.partition(":")
        if colon and key.strip() == key:
            stated[key] = value.strip().strip("'\"")
    named = stated.get("license", "")
    return (stated.get("license_name") or named if named == "other" else named)[:200]


def write_manifest(publication: Publication, into: Path | None = None) -> Path:
    """Write the manifest beside the model, or into another folder; returns its path."""
    path = (into or publication.folder) / MANIFEST_FILE
    write_whole(path, publication.manifest.to_json())
    return path


def refuse_own_code(folder: Path) -> None:
    """Raise ModelUnsupported for a model whose configuration names code of its own to run."""
    named = read_config(folder).get("auto_map")
    if named:
        raise ModelUnsupported(
            "this model comes with code of its own",
            why=f"its config.json asks for {json.dumps(named)[:200]}, and strangers' code is not "
            "run here",
            next_step="publish it as one of the architectures that the library knows",
        )


def _sigma_bytes(program: ModelProgram) -> bytes:
    """σ as bfloat16 [layers + 1, hidden]: it has no more bits."""
    from core.dispute.trace.families import SIGMA

    bits = program.tables[SIGMA].view("<u4")
    assert not (bits & 0xFFFF).any(), "σ has more bits than bfloat16"
    return (bits >> 16).astype("<u2").tobytes()


def _measured(architecture: str, numerics: str) -> list[ToleranceBasis]:
    from core.dispute.registration.calibrated import entries_of

    return [
        ToleranceBasis(
            max_depth=entry["max_depth"],
            min_rows=entry["min_rows"],
            windows=entry["windows"],
            largest_parts_per_trillion=round(entry["largest"] * 10**12),
        )
        for entry in entries_of(architecture, numerics)
    ]
