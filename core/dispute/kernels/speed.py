"""How long does this machine take for a trace?

The figures are of a slow machine that does something else beside; `docs/trust.md` §12 has what
was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.dispute.kernels.cores import cores
from core.protocol.compiled import has_compiler

#: In a second of one core: chunks whose values and hashes are made, without the products of dot
#: products; and these products.
_CHUNKS_PER_S, _PRODUCTS_PER_S = 1_500_000, 3_000_000_000
#: Without a compiler: numpy makes values, on one core or hardly more, and Python hashes them.
_CHUNKS_PER_S_WITHOUT, _PRODUCTS_PER_S_WITHOUT = 100_000, 300_000_000
#: To a slow disk and from it. What does not fit the memory is written, read about twice for what
#: follows from it, and read to be hashed.
_DISK_BYTES_PER_S, _MOVED_BYTES = 200_000_000, 4 * 64


@dataclass(frozen=True)
class Speed:
    """Seconds of all cores for one chunk, and for one product of a dot product."""

    chunk_s: float
    product_s: float

    def seconds(self, chunks: int, products: int) -> float:
        """Seconds for a trace of so many."""
        return chunks * self.chunk_s + products * self.product_s


def speed() -> Speed:
    """Of this process, with all its cores and one disk; a compiler is counted on, and not tried."""
    if has_compiler():
        chunk_s, product_s = 1 / _CHUNKS_PER_S / cores(), 1 / _PRODUCTS_PER_S / cores()
    else:
        chunk_s, product_s = 1 / _CHUNKS_PER_S_WITHOUT, 1 / _PRODUCTS_PER_S_WITHOUT
    return Speed(chunk_s + _MOVED_BYTES / _DISK_BYTES_PER_S, product_s)
