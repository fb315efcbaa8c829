"""What would the network do if these programs ran far apart? TCP links with latency, jitter, bandwidth and faults."""

from devnet.links.conditions import WAYS, Conditions, Way
from devnet.links.emulator import Emulator, Links

__all__ = ["WAYS", "Conditions", "Emulator", "Links", "Way"]
