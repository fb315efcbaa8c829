"""Which pages are taken, by how many holders, and which come next?

A page is 16 tokens of one layer of one attention class, the page of `core.batching.KvLedger`. Pages
[0, resident) always stay in hot memory and may be shared. With offload every microbatch also has
`swapped` pages of its own, numbered from `resident` on: they are hot only while their microbatch is
near its turn, so no other request may hold them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PAGE_TOKENS = 16
Pages = npt.NDArray[np.int64]


class PageAllocator:
    """Free lists and reference counts of one attention class. Pure bookkeeping: touches no tensor.

    Page 0 is never handed out: it stays all zeros and stands wherever a table is padded.
    """

    def __init__(
        self,
        resident: int,
        *,
        swapped: int = 0,
        microbatches: int = 1,
        resident_share: int | None = None,
    ) -> None:
        """`resident_share` bounds the resident pages of one microbatch; None is no bound."""
        if resident < 1 or swapped < 0 or microbatches < 1:
            raise ValueError(f"{resident} resident, {swapped} swapped, {microbatches} microbatches")
        self.resident, self.swapped, self.microbatches = resident, swapped, microbatches
        self.resident_share = resident if resident_share is None else resident_share
        self.holders = np.zeros(resident, np.int32)
        self.holders[0] = 1
        self._kept = np.zeros(resident, bool)
        self._payer = np.zeros(resident, np.int32)
        self._paid = [0] * microbatches
        self._free = _Stack(np.arange(1, resident))
        ids = np.arange(resident, resident + swapped)
        self._free_swapped = [_Stack(ids) for _ in range(microbatches)]

    @property
    def free_pages(self) -> int:
        """Pages that a request could still get, over all microbatches."""
        return len(self._free) + sum(len(stack) for stack in self._free_swapped)

    @property
    def used_pages(self) -> int:
        total = self.resident - 1 + self.swapped * self.microbatches
        return total - self.free_pages

    @property
    def used_resident_pages(self) -> int:
        """Of the used ones, those that never leave the device."""
        return self.resident - 1 - len(self._free)

    @property
    def idle_pages(self) -> int:
        """Of the used ones, those that are only kept for later requests with the same prompt."""
        return int(np.count_nonzero(self._kept & (self.holders == 1)))

    def room(self, microbatch: int) -> int:
        """Pages that this microbatch can still get while no request gives one back."""
        share = self.resident_share - self._paid[microbatch]
        return min(len(self._free), max(0, share)) + len(self._free_swapped[microbatch])

    def try_take(self, count: int, microbatch: int = 0) -> Pages | None:
        """`count` pages for one holder, resident ones first; None where there are too few."""
        if count > self.room(microbatch):
            return None
        share = self.resident_share - self._paid[microbatch]
        kept = min(count, len(self._free), max(0, share))
        hot = self._free.pop(kept)
        self.holders[hot] = 1
        self._payer[hot] = microbatch
        self._paid[microbatch] += kept
        if kept == count:
            return hot
        return np.concatenate([hot, self._free_swapped[microbatch].pop(count - kept)])

    def share(self, pages: Pages) -> None:
        """One more holder for each of these resident pages [n]."""
        assert (pages < self.resident).all(), "swapped pages cannot be shared"
        assert (self.holders[pages] > 0).all(), "a free page cannot be shared"
        self.holders[pages] += 1

    def keep(self, pages: Pages) -> None:
        """Hold these resident pages [n] for no request yet: they outlive that which filled them."""
        self.share(pages)
        self._kept[pages] = True

    def let_go(self, pages: Pages, microbatch: int = 0) -> Pages:
        """Undo `keep`; returns those of pages [n] that are now free."""
        self._kept[pages] = False
        return self.give_back(pages, microbatch)

    def give_back(self, pages: Pages, microbatch: int = 0) -> Pages:
        """One holder less for each of pages [n]; returns those that are now free."""
        swapped = pages[pages >= self.resident]
        hot = pages[(pages < self.resident) & (pages > 0)]
        if len(hot):
            assert (self.holders[hot] > 0).all(), "a page was given back twice"
            self.holders[hot] -= 1
            hot = hot[self.holders[hot] == 0]
            for payer, count in zip(*np.unique(self._payer[hot], return_counts=True), strict=True):
                self._paid[payer] -= int(count)
            self._free.push(hot)
        if not len(swapped):
            return hot
        self._free_swapped[microbatch].push(swapped)
        return np.concatenate([hot, swapped])


class _Stack:
    """Numbers, last in first out, without a Python object for each."""

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self._ids = ids[::-1].astype(np.int64)  # pops ascend, so that young arenas have long runs
        self._length = len(ids)

    def __len__(self) -> int:
        return self._length

    def pop(self, count: int) -> Pages:
        start = self._length - count
        assert start >= 0
        taken: Pages = self._ids[start : self._length][::-1].copy()
        self._length = start
        return taken

    def push(self, ids: Pages) -> None:
        end = self._length + len(ids)
        assert end <= len(self._ids), "more pages came back than were handed out"
        self._ids[self._length : end] = ids[::-1]
        self._length = end
