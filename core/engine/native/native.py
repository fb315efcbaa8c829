"""How do our C kernels come to run on this very processor?

They are compiled when the first shard is loaded, in half a second (`core.protocol.compiled`), and
once more for float64 where an auditor judges. A machine without a compiler does without them.
"""

from __future__ import annotations

import ctypes
import logging
import tempfile
from functools import cache
from pathlib import Path

from core.protocol.compiled import NoKernels, compile_c

_log = logging.getLogger(__name__)
_NAMES = ("products.c", "paged_rows.c", "whole_rows.c", "layers.c", "moves.c")
SOURCES = [Path(__file__).with_name(name) for name in _NAMES]
_ARITHMETIC = ("-ffp-contract=fast", "-fno-math-errno")


def kernels(bits: int = 32) -> ctypes.CDLL:
    """The compiled kernels for float32 or float64, made on first use. Raises NoKernels."""
    found = _made_once(bits)
    if isinstance(found, str):
        raise NoKernels(found)
    return found


@cache
def _made_once(bits: int) -> ctypes.CDLL | str:
    """The kernels, or why there are none: every step asks, so neither is looked for again."""
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-kernels-") as folder:
            file = compile_kernels(Path(folder), f"-DREAL_BITS={bits}")
            return open_kernels(file, bits)  # stays mapped once the file is gone
    except NoKernels as error:
        _log.warning("slower without our C kernels: %s", error)
        return str(error)


def compile_kernels(into: Path, *options: str) -> Path:
    """Compile them into a folder. Raises NoKernels."""
    return compile_c(SOURCES, into, *_ARITHMETIC, *options)


def open_kernels(file: Path, bits: int = 32) -> ctypes.CDLL:
    """Load what was compiled, in torch's own threads where they are found. Raises NoKernels."""
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise NoKernels(f"{file.name} does not load: {error}") from None
    pointer, number, threads = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    real = ctypes.c_double if bits == 64 else ctypes.c_float
    library.panel_width.restype = ctypes.c_int
    library.multiply.argtypes = [
        pointer,
        number,
        pointer,
        pointer,
        pointer,
        number,
        number,
        number,
        threads,
    ]
    library.multiply.restype = None
    if bits == 32:
        for name in ("multiply_half", "multiply_coded"):
            function = getattr(library, name)
            function.argtypes, function.restype = library.multiply.argtypes, None
    library.attend.argtypes = [
        pointer,
        number,
        number,
        pointer,
        pointer,
        pointer,
        number,
        pointer,
        pointer,
        pointer,
        number,
        number,
        number,
        number,
        number,
        real,
        threads,
    ]
    library.attend.restype = ctypes.c_int
    library.attend_whole.argtypes = [
        pointer,
        pointer,
        pointer,
        pointer,
        pointer,
        number,
        number,
        number,
        number,
        number,
        number,
        real,
        threads,
    ]
    library.attend_whole.restype = ctypes.c_int
    library.put.argtypes = [pointer, number, number, pointer, pointer, number, number, number]
    library.put.restype = None
    library.stream.argtypes = [pointer, pointer, number]  # to, from, bytes
    library.stream.restype = None
    steps = [pointer, number, threads]  # space, rows, threads
    library.before_attention.argtypes = [pointer, pointer, pointer, pointer, pointer, *steps]
    library.before_attention.restype = None
    library.after_attention.argtypes = [pointer, pointer, pointer, *steps]
    library.after_attention.restype = None
    library.single_rows.argtypes = [pointer, pointer, number, pointer, pointer, *steps]
    library.single_rows.restype = ctypes.c_int
    parallel = _torchs_parallel()
    for share in (
        library.share_threads,
        library.share_threads_to_attend,
        library.share_threads_to_attend_whole,
    ):
        share.argtypes, share.restype = [pointer], None
        share(parallel)
    return library


def _torchs_parallel() -> ctypes.c_void_p | None:
    """`GOMP_parallel` of the library that torch has loaded: another one would add its threads."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    for line in maps.read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libgomp" in path and path.startswith("/"):
            return ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p)
    return None


__all__ = ["SOURCES", "NoKernels", "compile_kernels", "kernels", "open_kernels"]
