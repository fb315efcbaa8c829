"""How do our C kernels come to run on this very processor?

They are three small files without dependencies, compiled when the first shard is loaded, by whatever compiler the machine has
(half a second), for the instructions that it has. A machine without a compiler does without them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_log = logging.getLogger(__name__)
SOURCES = [Path(__file__).with_name(name) for name in ("products.c", "paged_rows.c", "layers.c")]
#: Names any compiler that takes gcc's options; empty for none.
VARIABLE = "HEADRACE_CC"
_COMPILERS = ("cc", "gcc", "clang")
_OPTIONS = (
    *("-O3", "-ffp-contract=fast", "-fno-math-errno"),
    *("-shared", "-fPIC", "-std=gnu11", "-Wno-psabi"),
)
_FOR_THIS = ("-march=native", "-mcpu=native")
_LIMIT_S = 300


class NoKernels(RuntimeError):
    """There are no C kernels here; the message says why."""


def kernels() -> ctypes.CDLL:
    """The compiled kernels, made on first use. Raises NoKernels."""
    found = _made_once()
    if isinstance(found, str):
        raise NoKernels(found)
    return found


@cache
def _made_once() -> ctypes.CDLL | str:
    """The kernels, or why there are none: every step asks, so neither is looked for again."""
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-kernels-") as folder:
            return open_kernels(compile_kernels(Path(folder)))  # stays mapped once the file is gone
    except NoKernels as error:
        _log.warning("slower without our C kernels: %s", error)
        return str(error)


def compile_kernels(into: Path, *options: str) -> Path:
    """Compile them into a folder. Raises NoKernels."""
    compiler = _compiler()
    target = into / "kernels.so"
    said = ""
    for processor in _FOR_THIS:
        command = [compiler, *_OPTIONS, processor, *options, "-o", str(target), *map(str, SOURCES)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoKernels(f"{compiler} does not run: {error}") from None
        if done.returncode == 0:
            return target
        said = said or next(iter(done.stderr.splitlines()), "")[:200]
    raise NoKernels(f"{compiler} refuses our kernels: {said or 'without a word'}")


def open_kernels(file: Path) -> ctypes.CDLL:
    """Load what was compiled; it runs in torch's own threads where those can be found. Raises NoKernels."""
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise NoKernels(f"{file.name} does not load: {error}") from None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.multiply.argtypes = [
        *(pointer, number, pointer, pointer, pointer),
        *(number, number, number, ctypes.c_int),
    ]
    library.multiply.restype = None
    library.share_threads.argtypes = [pointer]
    library.share_threads.restype = None
    library.panel_width.restype = ctypes.c_int
    library.share_threads_to_attend.argtypes = [pointer]
    library.share_threads_to_attend.restype = None
    library.attend.argtypes = [
        *(pointer, number, number, pointer, pointer, pointer, number, pointer, pointer, pointer),
        *(number, number, number, number, number, ctypes.c_float, ctypes.c_int),
    ]
    library.attend.restype = ctypes.c_int
    library.put.argtypes = [pointer, number, number, pointer, pointer, number, number, number]
    library.put.restype = None
    steps = [pointer, number, ctypes.c_int]  # space, rows, threads
    library.before_attention.argtypes = [pointer, pointer, pointer, pointer, pointer, *steps]
    library.before_attention.restype = None
    library.after_attention.argtypes = [pointer, pointer, pointer, *steps]
    library.after_attention.restype = None
    library.single_rows.argtypes = [pointer, pointer, number, pointer, pointer, pointer, *steps]
    library.single_rows.restype = ctypes.c_int
    parallel = _torchs_parallel()
    library.share_threads(parallel)
    library.share_threads_to_attend(parallel)
    return library


def _compiler() -> str:
    named = os.environ.get(VARIABLE)
    if named == "":
        raise NoKernels(f"{VARIABLE} names no compiler")
    for name in (named,) if named else _COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise NoKernels("this machine has no C compiler")


def _torchs_parallel() -> ctypes.c_void_p | None:
    """`GOMP_parallel` of the library that torch has loaded: another one would bring threads of its own."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    for line in maps.read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libgomp" in path and path.startswith("/"):
            return ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p)
    return None
