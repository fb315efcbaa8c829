"""An accuser's trace is looked at off chain only where it is under the root that it posted, and
leads to the first value that differs.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from client.disputes.show_trace import Showing
from core.dispute.play.players import Accuser, with_trace
from core.dispute.play.selfcheck import sampled
from core.dispute.trace import chunks
from core.protocol import wire
from core.protocol.errors import CheckFailed
from miner.defence.shown_trace import MAX_SHOWN, ShownNodes
from tests.core.dispute.play.models import Tiny, with_value
from tests.frames import encode
from tests.game.test_players import Scene

DISPUTE = "0x" + "ab" * 32


class Wire:
    """A stream to a miner's program, without the stream."""

    def __init__(self, nodes: ShownNodes) -> None:
        self._nodes, self.levels = nodes, list[int]()

    async def call(self, message: wire.ShowNode, data: bytes, timeout_s: float) -> wire.Frame:
        raw = encode(message, data)
        frame = wire.decode(raw)
        assert isinstance(frame.message, wire.ShowNode)
        self.levels.append(frame.message.level)
        try:
            child = self._nodes.differs(
                frame.message.level, frame.message.index, bytes(frame.payload)
            )
        except ValueError as error:
            return wire.decode(encode(wire.Failed("E-GAME-HASHES", str(error))))
        return wire.decode(encode(wire.Differs(child)))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene.make(Tiny.make(tmp_path_factory.mktemp("models"), "llama"), (1, 2), 1.0)


async def test_what_is_shown_leads_to_the_first_value_that_differs(scene: Scene) -> None:
    honest, accused = scene.players()
    rng = random.Random(9)
    for place in rng.sample(list(sampled(honest.case.layout, 1, rng)), 6):
        value = honest.trace[place]
        if not np.isfinite(value):
            continue
        forged = with_value(honest.trace, place, float(np.nextafter(value, -np.inf)))
        liar = Accuser(with_trace(honest.case, forged), forged, honest.sources)
        nodes = ShownNodes(forged.tree.root, accused.trace)
        line = Wire(nodes)

        async def connect(line: Wire = line) -> Wire:
            return line

        shown = await Showing(connect).show(liar, DISPUTE)  # type: ignore[arg-type]
        assert nodes.place is not None
        found = nodes.place
        assert found[:2] == place[:2] or accused.trace.layout.op(*found[:2]).a == place.op
        assert shown == len(line.levels) == 1 + -(-forged.tree.height // chunks.STEP_LEVELS)


async def test_an_equal_trace_shows_nothing(scene: Scene) -> None:
    honest, accused = scene.players()
    line = Wire(ShownNodes(honest.trace.tree.root, accused.trace))

    async def connect() -> Wire:
        return line

    with pytest.raises(CheckFailed, match="looks at nothing"):
        await Showing(connect).show(honest, DISPUTE)  # type: ignore[arg-type]


def test_what_is_not_under_the_root_is_not_looked_at(scene: Scene) -> None:
    honest, accused = scene.players()
    place = next(sampled(honest.case.layout, 1, random.Random(1)))
    forged = with_value(honest.trace, place, honest.trace[place] + 1.0)
    tree = forged.tree
    nodes = ShownNodes(tree.root, accused.trace)
    right = b"".join(tree.below(tree.height, 0))
    for level, index, data in (
        (tree.height, 0, right[:-32]),
        (tree.height, 0, right + bytes(32)),
        (tree.height, 0, right[:-1]),
        (tree.height, 0, b"".join(honest.trace.tree.below(tree.height, 0))),
        (tree.height, 1, right),
        (tree.height - chunks.STEP_LEVELS, 0, right),
        (0, 0, bytes(64)),
    ):
        with pytest.raises(ValueError):
            nodes.differs(level, index, data)
    child = nodes.differs(tree.height, 0, right)
    below = tree.height - chunks.STEP_LEVELS
    assert below > 0
    nodes.differs(below, child, b"".join(tree.below(below, child)))
    with pytest.raises(ValueError, match="more than"):
        for _ in range(MAX_SHOWN):
            nodes.differs(tree.height, 0, right)
