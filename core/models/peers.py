"""How are a model's files read from the machines that serve it?

They are asked after the places that its publisher states: what they send takes from the line that
they earn with. What comes is held to hashes as from any other place.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from core.models.places import ModelPlace, Sink, paced
from core.protocol import wire
from core.protocol.errors import ModelMissing, PeerUnreachable, Unreachable
from core.protocol.signing import Domain
from core.protocol.types import Address, LayerRange
from core.runtime.http_client import NoAnswer, ask_json
from core.runtime.logs import get_logger
from core.runtime.network.channel import Channel, StreamIdentity, connect

if TYPE_CHECKING:
    from core.runtime.settings import Settings

#: What a miner refuses with: it has not these bytes of the model; it sends to others just now.
NOT_HERE, BUSY = "E-SHARE-NOT-HERE", "E-SHARE-BUSY"
#: Asked for at once.
ASK_BYTES = 2**18
#: A machine that has sent nothing for so long is left for another.
PATIENCE_S = 30.0
#: What a machine lacks it says at once, whatever else it sends: a later word plays for time.
LACKS_WITHIN_S = 5.0
_BUSY_PAUSE_S = 0.5
_MATCHER_WITHIN_S = 10.0
#: Machines that are asked: so many for each layer that is wanted, and any up to so many in all.
EACH_LAYER, MOST_PEERS = 2, 16
#: The machines to ask for some layers of a model, or for all; called in a thread of its own.
FindPeers = Callable[[LayerRange | None], Sequence[ModelPlace]]
log = get_logger(__name__)


@dataclass(frozen=True)
class Sharer:
    """A machine that serves the model, and its layers as far as it has said them."""

    operator: str
    endpoint: str
    layers: LayerRange | None


class PeerPlace:
    """One machine that serves the model."""

    def __init__(self, model_id: str, sharer: Sharer, identity: StreamIdentity) -> None:
        self.uri = f"miner {sharer.operator}"
        self._model_id, self._sharer, self._identity = model_id, sharer, identity

    def read(self, file: str, start: int, end: int, size: int, sink: Sink) -> None:
        """As `ModelPlace.read`, in a thread without an event loop.

        Raises PeerUnreachable also where the machine is too slow: it is not asked again then.
        """
        with closing(self._parts(file, start, end, size)) as parts:
            for data in self._paced(parts, file):
                sink(start, data)
                start += len(data)

    def whole(self, file: str, most_bytes: int) -> bytes:
        """As `ModelPlace.whole`, in a thread without an event loop."""
        with closing(self._parts(file, 0, most_bytes, None)) as parts:
            return b"".join(self._paced(parts, file))

    def _paced(self, parts: Iterable[bytes], file: str) -> Iterator[bytes]:
        try:
            yield from paced(parts, self.uri, file)
        except Unreachable as error:
            raise PeerUnreachable(error.what, error.why) from None

    def _parts(self, file: str, start: int, end: int, size: int | None) -> Iterator[bytes]:
        """Bytes [start, end) of a file, or where its size is not known the whole of it."""
        to = self._sharer
        with asyncio.Runner() as runner:
            stream = runner.run(connect(to.endpoint, self._identity, expected=to.operator))
            try:
                while start < end:
                    stated, data = runner.run(self._ask(stream, file, start, end))
                    if size is None and stated <= end:
                        size = end = stated
                    if stated != size or not 0 < len(data) <= end - start:
                        raise PeerUnreachable(
                            f"{self.uri} has another {file}",
                            f"it says that it has {stated} bytes, and sent {len(data)} of them",
                        )
                    yield data
                    start += len(data)
            finally:
                runner.run(stream.close())

    async def _ask(self, stream: Channel, file: str, start: int, end: int) -> tuple[int, bytes]:
        """The size of a file, and some of its bytes from `start` on."""
        ask = wire.FetchFile(self._model_id, file, start, min(end, start + ASK_BYTES))
        clock = asyncio.get_running_loop().time
        asked_s = clock()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    frame = await stream.call(ask, timeout_s=PATIENCE_S)
                    answer = frame.message
                    if not (isinstance(answer, wire.Failed) and answer.code == BUSY):
                        break
                    await asyncio.sleep(_BUSY_PAUSE_S)
        except TimeoutError:
            why = f"it sends to others, and took no more asks for {PATIENCE_S:g} s"
            raise PeerUnreachable(f"cannot read {file} from {self.uri}", why) from None
        if isinstance(answer, wire.FileBytes):
            return answer.size, bytes(frame.payload)
        if isinstance(answer, wire.Failed):
            if answer.code == NOT_HERE and clock() - asked_s < LACKS_WITHIN_S:
                raise ModelMissing(f"{self.uri} has no {file}", why=answer.reason[:200])
            raise PeerUnreachable(f"{self.uri} sends no files", answer.reason[:200])
        raise PeerUnreachable(
            f"{self.uri} does not answer like a miner", f"with {type(answer).__name__}"
        )


def peer_places(
    model_id: str, known: Iterable[Sharer], layers: LayerRange | None, identity: StreamIdentity
) -> list[ModelPlace]:
    """Machines as places, in the order in which they are asked."""
    return [PeerPlace(model_id, sharer, identity) for sharer in chosen(known, layers)]


def chosen(known: Iterable[Sharer], layers: LayerRange | None) -> list[Sharer]:
    """Whom to ask for some layers, or for all: drawn, so that those who ask are spread over them.

    First machines by which each layer is held twice, as far as it is, then any of the others.
    """
    drawn, held = list(known), Counter[int]()
    random.shuffle(drawn)
    first, others = list[Sharer](), list[Sharer]()
    for sharer in drawn:
        has = range(sharer.layers.start, sharer.layers.end) if sharer.layers else range(0)
        wanted = [n for n in has if layers is None or layers.start <= n < layers.end]
        if any(held[number] < EACH_LAYER for number in wanted):
            held.update(wanted)
            first.append(sharer)
        else:
            others.append(sharer)
    return [*first, *others][: max(len(first), MOST_PEERS)]


class _Told(msgspec.Struct, rename="camel"):
    """What a matcher says of a machine, as far as it matters here."""

    operator: Address
    endpoint: str
    model_id: str
    alive: bool
    layers: LayerRange | None = None


class _Answer(msgspec.Struct):
    miners: list[_Told]


def peers_by_matcher(
    settings: Settings, model_id: str, layers: LayerRange | None
) -> list[ModelPlace]:
    """The machines of a model that the network's matcher sees in the swarm, asked as a stranger.

    None where no matcher is configured or answers. Raises ConfigError for a network without
    contracts.
    """
    from core.keys.signer import Signer

    url = next((url for url, _ in settings.network.matcher_places), "")
    if not url:
        return []
    chain_id, _ = settings.require_network()
    domain = Domain(chain_id, settings.network.contract("TaskRegistry"))
    identity = StreamIdentity.on(
        settings.network, Signer(os.urandom(32), chain_id=chain_id), domain
    )
    try:
        told = asyncio.run(_told_by(url))
    except (NoAnswer, msgspec.ValidationError) as error:
        log.warning("no machine is asked for the model's files", matcher=url, why=str(error))
        return []
    known = [
        Sharer(one.operator, one.endpoint, one.layers)
        for one in told
        if one.alive and one.model_id.lower() == model_id.lower()
    ]
    return peer_places(model_id, known, layers, identity)


async def _told_by(url: str) -> list[_Told]:
    """Raises NoAnswer, or ValidationError for an answer that is not a matcher's."""
    import httpx2

    async with httpx2.AsyncClient() as client:
        status, found = await ask_json(
            client, "GET", f"{url}/v1/miners", within_s=_MATCHER_WITHIN_S
        )
    if status != 200:
        raise NoAnswer(f"HTTP {status}")
    return msgspec.convert(found, _Answer).miners
