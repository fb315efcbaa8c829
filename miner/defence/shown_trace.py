"""What has an accuser shown us of its trace off chain, and which value of it is not ours?

Everything is held against the root that the accuser posted: it could be opened on chain as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.dispute.trace import chunks
from core.dispute.trace.answer import differing, place_in
from core.dispute.trace.evidence import chunk_hashes
from core.dispute.trace.layout import Place

if TYPE_CHECKING:
    from core.dispute.play.held import ShardTrace

HASH_BYTES = 32
MAX_SHOWN = 64  # nodes of one trace; a descent shows eight


class ShownNodes:
    """Nodes of one accuser's trace beside our own."""

    def __init__(self, root: bytes, own: ShardTrace) -> None:
        self.root = root
        self._own, self._tree = own, own.tree
        self._known = {(self._tree.height, 0): root}
        self._left = MAX_SHOWN
        self.place: Place | None = None  # where to point, once a chunk was shown

    def differs(self, level: int, index: int, data: bytes) -> int:
        """Number of the first hash below this node that is not ours.

        At level 0 the chunk itself is shown, and `place` is set. Raises ValueError for what is not
        under the root, in which nothing differs, or which is too much.
        """
        if (level, index) not in self._known:
            raise ValueError(f"node {index} of level {level} is under nothing that was shown")
        if not self._left:
            raise ValueError(f"more than {MAX_SHOWN} nodes")
        self._left -= 1
        known = self._known[level, index]
        if level == 0:
            if chunk_hashes(data) != [known]:
                raise ValueError("a chunk of another hash")
            self.place = place_in(self._own, index, data)
            return 0
        step = min(chunks.STEP_LEVELS, level)
        ours = self._tree.below(level, index)
        theirs = [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]
        if list(map(len, theirs)) != [HASH_BYTES] * len(ours) or chunks.fold(theirs, step) != known:
            raise ValueError("hashes of another node")
        child = differing(ours, theirs)
        if child is None:
            raise ValueError("nothing in it differs")
        self._known[level - step, (index << step) + child] = theirs[child]
        return child
