"""How does C of ours come to run on this very processor?

Small files without dependencies are compiled when they are first needed, for the instructions of
this processor, by the compiler that the machine has. A machine without one uses Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: Names any compiler that takes gcc's options; empty for none.
VARIABLE = "HEADRACE_CC"
_COMPILERS = ("cc", "gcc", "clang")
_OPTIONS = ("-O3", "-shared", "-fPIC", "-std=gnu11", "-Wno-psabi")
_FOR_THIS = ("-march=native", "-mcpu=native")
_LIMIT_S = 300


class NoKernels(RuntimeError):
    """There is no compiled C here; the message says why."""


def compile_c(sources: Sequence[Path], into: Path, *options: str) -> Path:
    """Compile files into a library in a folder. Raises NoKernels."""
    compiler = _compiler()
    target = into / "kernels.so"
    said = ""
    for processor in _FOR_THIS:
        command = [compiler, *_OPTIONS, processor, *options, "-o", str(target), *map(str, sources)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoKernels(f"{compiler} does not run: {error}") from None
        if done.returncode == 0:
            return target
        said = said or next(iter(done.stderr.splitlines()), "")[:200]
    raise NoKernels(f"{compiler} refuses our kernels: {said or 'without a word'}")


def has_compiler() -> bool:
    """Whether there is a compiler to try, which is not run."""
    try:
        return bool(_compiler())
    except NoKernels:
        return False


def _compiler() -> str:
    named = os.environ.get(VARIABLE)
    if named == "":
        raise NoKernels(f"{VARIABLE} names no compiler")
    for name in (named,) if named else _COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise NoKernels("this machine has no C compiler")
