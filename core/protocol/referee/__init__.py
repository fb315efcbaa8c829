"""The referee: is one element of a float64 trace right, decided in integers alone, bit for bit as the chain decides it."""

from core.protocol.referee.check import check
from core.protocol.referee.exact import check_exact, exact_value
from core.protocol.referee.formats import Format
from core.protocol.referee.leaf import Kind, Leaf, LeafError, Ruling

__all__ = ["Format", "Kind", "Leaf", "LeafError", "Ruling", "check", "check_exact", "exact_value"]
