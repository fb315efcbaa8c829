"""Which code hashes for a worker, thousands of times a second: C if it compiles here, else Python?

The bytes are the same either way. `commit` says what trees over rows are, `signing` what is signed.
"""

from __future__ import annotations

from collections.abc import Callable

from eth_utils.crypto import keccak as _in_python

#: Hashing as much takes so long that other threads should run meanwhile.
_LONG_BYTES = 2**18


class InC:
    """`rows.c` and `keccak.c`, compiled for this processor."""

    def __init__(self) -> None:
        """Raises NoKernels."""
        import ctypes
        import tempfile
        from pathlib import Path

        from core.protocol.compiled import NoKernels, compile_c

        here = Path(__file__).parent
        with tempfile.TemporaryDirectory(prefix="headrace-hashing-") as folder:
            file = compile_c([here / "rows.c", here / "keccak.c"], Path(folder))
            try:
                # Most calls are short: releasing the interpreter's lock would take longer.
                library, apart = ctypes.PyDLL(str(file)), ctypes.CDLL(str(file))
            except OSError as error:
                raise NoKernels(f"{file.name} does not load: {error}") from None
        address, number = ctypes.c_void_p, ctypes.c_int64
        self._append, self._root = library.append_rows, library.root_of_rows
        self._append_apart, self._keccak = apart.append_rows, library.keccak256
        self._append.argtypes = [address, number, address, number, number]
        self._append_apart.argtypes = self._append.argtypes
        self._append_apart.restype = None
        self._root.argtypes = self._keccak.argtypes = [address, number, address]
        self._append.restype = self._root.restype = self._keccak.restype = None
        self._byref, self._first = ctypes.byref, ctypes.c_char.from_buffer
        self._hash: Callable[[], ctypes.Array[ctypes.c_char]] = ctypes.c_char * 32

    def append(
        self, nodes: bytearray, before: int, rows: bytes | memoryview, row_bytes: int, count: int
    ) -> None:
        """Add `count` rows to a tree of `before` rows; `nodes` has room for the new ones."""
        is_fixed = isinstance(rows, bytes) or rows.readonly
        data = bytes(rows) if is_fixed else self._byref(self._first(rows))
        append = self._append if row_bytes * count < _LONG_BYTES else self._append_apart
        append(self._byref(self._first(nodes)), before, data, row_bytes, count)

    def root(self, nodes: bytearray, rows: int) -> bytes:
        """Root of the first `rows` rows of a tree."""
        out = self._hash()
        self._root(self._byref(self._first(nodes)), rows, out)
        return out.raw

    def keccak(self, data: bytes) -> bytes:
        """Keccak-256."""
        out = self._hash()
        self._keccak(data, len(data), out)
        return out.raw


#: None until `hash_in_c`.
in_c: InC | None = None


def hash_in_c() -> bool:
    """From now on C hashes, the same bytes in a fraction of the time. False where it cannot.

    Compiles for a part of a second, so it is for a program that hashes all day.
    """
    global in_c
    from core.protocol.compiled import NoKernels

    if in_c is None:
        try:
            in_c = InC()
        except NoKernels:
            return False
    return True


def keccak(data: bytes) -> bytes:
    """Keccak-256, as Ethereum has it."""
    return _in_python(data) if in_c is None else in_c.keccak(data)
