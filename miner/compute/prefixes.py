"""Which chunks of prompts need not be computed, because the same was computed here before?

A chunk is known by all bytes that entered this stage up to its end, ids or rows of the stage
before, within the prompts of one requester. Others never share: how soon a first token comes would
tell them whether another requester has sent the same prompt. Only whole canonical chunks count,
whose pages and rows are the same to the bit for every request, so commitments, receipts and audits
are those of a request that was computed. The chunk that draws a token is always computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from core.batching.chunks import CHUNK_TOKENS
from miner.compute.stepper import Outcome, StepWork, as_rows

if TYPE_CHECKING:
    from miner.compute.stepper import Engine

Links = tuple[bytes, ...]


class ChunkChain:
    """The links of what a request has run so far, as long as that is whole chunks."""

    __slots__ = ("_links", "_owner")

    def __init__(self, owner: str) -> None:
        """Only prompts of one `owner` share."""
        self._owner = owner.lower().encode()
        self._links: list[bytes] = []

    def cut_back(self, rows: int) -> None:
        """The request has no more than `rows` rows."""
        del self._links[rows // CHUNK_TOKENS :]

    def with_chunk(self, data: bytes | memoryview) -> Links:
        """The links including the chunk that these bytes would be."""
        from core.engine.memory.prefix import first_link, next_link

        last = self._links[-1] if self._links else first_link(self._owner)
        return *self._links, next_link(last, data)

    def grow(self, links: Links) -> None:
        """The chunk that these links end with has run."""
        self._links = list(links)

    @property
    def rows(self) -> int:
        return CHUNK_TOKENS * len(self._links)


class Sorted(NamedTuple):
    """What becomes of a batch's works."""

    known: list[Outcome]  # done: others have computed the same
    to_run: list[StepWork]
    to_wait: list[StepWork]  # the same chunk of another request runs now


def sort_out(engine: Engine, works: Sequence[StepWork]) -> Sorted:
    """Give works of a batch what others have computed, and hold those back of which a twin runs in
    this batch, once. Their requests are open in the engine. Works that run are given the links
    under which they are to be kept.
    """
    if not engine.shares_prefixes:
        return Sorted([], list(works), [])
    known, to_run, to_wait = Sorted([], [], [])
    running: set[Hashable] = set()
    held_back: set[Hashable] = set()
    for work in works:
        request = work.request
        work.links = ()
        if request in held_back:
            to_wait.append(work)
            continue
        links = _links_of(engine, work)
        if not links:
            to_run.append(work)
            continue
        rows = None if work.draw is not None else engine.adopt(request, links, work.end)
        twin = links[-1], request.layers
        if rows is not None:
            request.chain.grow(links)
            *inner, left = rows.split(engine.shard.hidden, -1)
            if request.ends and len(rows):  # nothing leaves, and all of it is inside
                inner, left = [*inner, left], left[:0]
            if work.inside is not None:
                work.inside += map(as_rows, inner)
            known.append((work, as_rows(left)))
        elif twin in running and not work.has_waited and work.draw is None:
            work.has_waited = True
            held_back.add(request)
            to_wait.append(work)
        else:
            running.add(twin)
            work.links = links
            to_run.append(work)
    return Sorted(known, to_run, to_wait)


def note_run(works: Sequence[StepWork]) -> None:
    """These works have run, with their links."""
    for work in works:
        if work.links:
            work.request.chain.grow(work.links)


def _links_of(engine: Engine, work: StepWork) -> Links:
    """None for what is no whole chunk after whole chunks."""
    request = work.request
    chain = request.chain
    if chain is None:
        return ()
    if work.first < chain.rows:
        chain.cut_back(work.first)
    if (
        work.tokens != CHUNK_TOKENS
        or work.first != chain.rows
        or work.first != engine.length(request)
        or work.as_decodes
        or work.guesses is not None
    ):
        return ()
    return chain.with_chunk(_bytes_of(work))


def _bytes_of(work: StepWork) -> bytes | memoryview:
    if not work.request.begins:
        data: bytes | memoryview = work.data
        return data
    import numpy as np

    return np.asarray(work.data, "<i8").tobytes()
