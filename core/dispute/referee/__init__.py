"""Whether one element of a trace is right, in integers alone, bit for bit as on chain.

`leaf`        one leaf of a trace: operator, parameters, committed operands
`check`       the predicate of each operator kind, and who is at fault for malformed bytes
`exact`       whether a value of a canonical trace is the only one (`docs/trust.md` §5)
`formats`     which number committed bytes hold, exactly
`selection`   whether another token was ahead, greedy or seeded, and inside the filters
`noise`       the noise that a seed gives a token (`docs/protocol.md` §5)
`window`      whether the served output is too far from the reference
`real`        numbers of any size, with the same bits in two languages
`sums`        the sum of at most 256 numbers, and of their magnitudes
`transcend`   e^x and ln x, to far more bits than a float64 has
`nearest`     the nearest float64 to a number, a quotient, an inverse root
"""

from core.dispute.referee.check import check
from core.dispute.referee.exact import exact_value
from core.dispute.referee.formats import Format
from core.dispute.referee.leaf import Kind, Leaf, LeafError, Ruling

__all__ = ["Format", "Kind", "Leaf", "LeafError", "Ruling", "check", "exact_value"]
