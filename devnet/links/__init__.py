"""TCP links with latency, jitter, bandwidth and faults, as if programs ran far apart.

`conditions`  one direction of a link, and when a byte that enters it comes out
`emulator`    which links there are, and how they change while they carry
`connection`  one connection over a link, from its opening to its end
`pipe`        the bytes of one direction, waiting in order and in bounded memory
`precise`     an event loop that wakes within a fraction of a millisecond
`service`     links as a program of their own
"""

from devnet.links.conditions import WAYS, Conditions, Way
from devnet.links.emulator import Emulator

__all__ = ["WAYS", "Conditions", "Emulator", "Way"]
