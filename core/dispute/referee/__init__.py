"""The referee: is one element of a float64 trace right, decided in integers alone, bit for bit as the chain decides it."""

from core.dispute.referee.check import check
from core.dispute.referee.exact import check_exact, exact_value
from core.dispute.referee.formats import Format
from core.dispute.referee.leaf import Kind, Leaf, LeafError, Ruling

__all__ = ["Format", "Kind", "Leaf", "LeafError", "Ruling", "check", "check_exact", "exact_value"]
