"""How does the C of traces come to run on this very processor?

It is compiled when the first trace is built (`core.protocol.compiled`). A machine without a
compiler, or whose processor has no such instructions, does without.
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
_AT, _COUNT = ctypes.c_void_p, ctypes.c_int64


@cache
def hashing() -> ctypes.CDLL | None:
    """The functions of `chunks.c`; None where C does not compile."""
    library = _made("chunks.c")
    if library is not None:
        library.leaves.argtypes = [_AT, _COUNT, _COUNT, _AT]
        library.parents_above.argtypes = [_AT, _COUNT, _COUNT]
        library.leaves.restype = library.parents_above.restype = None
    return library


def _made(*names: str) -> ctypes.CDLL | None:
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-traces-") as folder:
            file = compile_c([_HERE / name for name in names], Path(folder))
            try:
                return ctypes.CDLL(str(file))  # stays mapped once the file is gone
            except OSError as error:
                raise NoKernels(f"{file.name} does not load: {error}") from None
    except NoKernels as error:
        _log.warning("traces are slower without our C: %s", error)
        return None
