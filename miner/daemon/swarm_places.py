"""Which machines of the swarm may send us files of our model?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from core.chain.staked import StakedOperators
from core.models.peers import Sharer, peer_places
from core.models.places import ModelPlace
from core.protocol.errors import ChainUnreachable, PeerUnreachable
from core.protocol.types import LayerRange
from core.runtime.logs import get_logger
from core.runtime.network.channel import StreamIdentity
from core.runtime.network.transport import Swarm
from miner.daemon.announce import machines

log = get_logger(__name__)


class SwarmPlaces:
    """Finds machines that serve a model. Made in the loop that the swarm is asked in."""

    def __init__(self, swarm: Swarm, staked: StakedOperators, identity: StreamIdentity) -> None:
        """Whoever has stake is believed; `identity` is what they are asked under."""
        self._swarm, self._staked, self._identity = swarm, staked, identity
        self._loop = asyncio.get_running_loop()

    @property
    def staked(self) -> frozenset[str]:
        """Operators with stake, in lower case, as far as the chain was read."""
        return self._staked.operators

    def find(self, model_id: str, layers: LayerRange | None) -> Sequence[ModelPlace]:
        """Machines to ask for these layers, or for all, in order. In a thread beside the loop.

        None where the swarm does not answer.
        """
        known = asyncio.run_coroutine_threadsafe(self._known(model_id), self._loop).result()
        return peer_places(model_id, known, layers, self._identity)

    async def _known(self, model_id: str) -> list[Sharer]:
        if not self.staked:  # at the start: nobody reads them yet
            await self.admit_staked()
        own, domain = self._identity.signer.address, self._identity.domain
        found = await machines(self._swarm, domain, own, model_id)
        return [Sharer(one.operator, one.endpoint, one.layers) for one in found]

    async def admit_staked(self) -> None:
        """Let our peer of the swarm believe operators that have stake, and nobody else."""
        try:
            operators = await self._staked.poll()
        except ChainUnreachable as error:
            log.debug("stakes are not read", why=str(error))
            operators = self.staked
        with contextlib.suppress(PeerUnreachable):  # the next one is told when it is there
            await self._swarm.admit(operators)
