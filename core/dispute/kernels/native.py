"""How does the C of traces come to run on this very processor?

It is compiled when the first trace is built, in two seconds (`core.protocol.compiled`). A machine
without a compiler, or whose processor has no such instructions, does without.
"""

from __future__ import annotations

import ctypes
import logging
import tempfile
from functools import cache
from pathlib import Path

from core.protocol.compiled import NoKernels, compile_c

_log = logging.getLogger(__name__)
_HERE = Path(__file__).parent
#: Nothing may be contracted or put in another order: what a sum rounds off is computed.
_ARITHMETIC = ("-ffp-contract=off", "-fno-math-errno")
_AT, _COUNT, _REAL, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int


@cache
def arithmetic(*options: str) -> ctypes.CDLL | None:
    """The functions of `dots.c`, `sums.c` and `elements.c`; None where C does not compile.

    `options` are the compiler's, beside those that it needs.
    """
    library = _made(("dots.c", "sums.c", "elements.c"), *_ARITHMETIC, *options)
    if library is not None:
        for name, takes in {
            "dot_products": [_AT, _COUNT, _AT, _COUNT, _AT, _AT, *[_COUNT] * 5, _REAL],
            "part_sums": [_AT, _COUNT, _AT, _COUNT, _COUNT, _COUNT, _FLAG],
            "exponentials": [_AT, _AT, _COUNT, _AT, _AT, _COUNT, _COUNT, _COUNT],
            "gates": [_AT, _AT, _AT, _AT, _COUNT],
            "soft_caps": [_AT, _AT, _REAL, _AT, _COUNT],
            "norms": [_AT, _AT, _AT, _REAL, _AT, _COUNT],
            "rotations": [_AT, _AT, _AT, _AT, _FLAG, _AT, _COUNT],
            "whitened": [_AT, _AT, _AT, _AT, _COUNT],
        }.items():
            function = getattr(library, name)
            function.argtypes, function.restype = takes, _COUNT
    return library


@cache
def hashing() -> ctypes.CDLL | None:
    """The functions of `chunks.c` and `shakes.c`; None where C does not compile."""
    library = _made(("chunks.c", "shakes.c"))
    if library is not None:
        library.leaves.argtypes = [_AT, _COUNT, _COUNT, _AT]
        library.parents_above.argtypes = [_AT, _COUNT, _COUNT]
        library.shake.argtypes = [_AT, *[_COUNT] * 4, ctypes.c_char_p, _AT, _AT, _COUNT]
        library.shake.restype = ctypes.c_int
        library.leaves.restype = library.parents_above.restype = None
    return library


def _made(names: tuple[str, ...], *options: str) -> ctypes.CDLL | None:
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-traces-") as folder:
            file = compile_c([_HERE / name for name in names], Path(folder), *options)
            try:
                return ctypes.CDLL(str(file))  # stays mapped once the file is gone
            except OSError as error:
                raise NoKernels(f"{file.name} does not load: {error}") from None
    except NoKernels as error:
        _log.warning("traces are slower without our C: %s", error)
        return None
