"""Whether one element of a trace is right, in integers alone, bit for bit as on chain.

`leaf`        one leaf of a trace: operator, parameters, committed operands
`check`       whether a leaf holds, and who is at fault for malformed bytes
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

from core.dispute.referee.check import rule
from core.dispute.referee.exact import exact_value
from core.dispute.referee.formats import Format
from core.dispute.referee.leaf import Leaf, LeafError, LeafKind, Ruling

__all__ = ["Format", "LeafKind", "Leaf", "LeafError", "Ruling", "exact_value", "rule"]
