"""Is no page ever lost, held twice by mistake, or left behind?"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.batching.kv_ledger import KvLedger
from core.engine.memory.layout import KvClass, KvLayout, PageShape
from core.engine.memory.offload import SwapStore, plan_arena
from core.engine.memory.paged_kv import Held, KvShort, PagedKv
from core.engine.memory.pages import PAGE_TOKENS, PageAllocator
from core.engine.memory.pool import HotStore
from core.engine.memory.prefix import PrefixIndex, first_link, next_link
from core.engine.memory.sizing import allocators_of
from core.protocol.errors import UsageError
from tests.core.engine.serving import clear, used_pages

SHAPE = PageShape(1, 2, 2)
LAYOUT = KvLayout((SHAPE,), (KvClass(0, 0, (0, 2)), KvClass(24, 0, (1, 3))))
CPU = torch.device("cpu")
ROWS = torch.zeros(16, 4)
MOVES = [*["open", "cancel"] * 3, *["step"] * 7, "cut"]


def link_pages(tokens: list[int], scope: bytes = b"") -> list[bytes]:
    """One link for each full page: the shortest chunks that there are."""
    links, link = [], first_link(scope)
    for start in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
        link = next_link(link, np.asarray(tokens[start : start + PAGE_TOKENS]).tobytes())
        links.append(link)
    return links


def make(pages: int = 200) -> PagedKv:
    store = HotStore((SHAPE,), [pages + 1], torch.float32, [CPU])
    return PagedKv(LAYOUT, [PageAllocator(pages + 1)], store)


def check_books(kv: PagedKv, index: PrefixIndex | None = None) -> None:
    """Count every holder again and compare with what the allocator believes."""
    allocator = kv.allocators[0]
    holders = np.zeros(allocator.resident, np.int64)
    swapped: set[tuple[int, int]] = set()
    tables = [(held, table) for held in kv.requests.values() for table in held.tables.values()]
    for held, table in tables:
        for page in table.held().tolist():
            assert page > 0, "the padding page was handed out"
            if page < allocator.resident:
                holders[page] += 1
            else:
                assert (held.microbatch, page) not in swapped, "a swapped page has two holders"
                swapped.add((held.microbatch, page))
    kept = np.zeros(allocator.resident, bool)
    for chunk in index._chunks.values() if index is not None else ():
        for found in chunk.pages.values():
            assert not kept[found].any(), "a page is kept twice"
            kept[found] = True
    holders += kept
    assert allocator.idle_pages == int((kept & (holders == 1)).sum())
    assert (holders[1:] == allocator.holders[1:]).all()
    assert allocator.used_pages == int((holders[1:] > 0).sum()) + len(swapped)


@pytest.mark.parametrize("microbatches", [1, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_random_moves_leave_no_page_behind(seed: int, microbatches: int) -> None:
    draw = random.Random(seed)
    plan = plan_arena(90, 25 if microbatches > 1 else 0, microbatches)
    store = SwapStore((SHAPE,), [plan], torch.float32)
    kv = PagedKv(LAYOUT, allocators_of([plan]), store)
    index = PrefixIndex(kv, max_blocks=8, max_row_bytes=2**20)
    links = {i: link_pages(list(range(i, i + 200))) for i in range(3)}
    adopted = 0
    names: dict[int, int] = {}
    refused = 0
    for move in range(1000):
        kind = draw.choice(MOVES)
        names = {name: prompt for name, prompt in names.items() if name in kv.requests}
        if kind == "open":
            start, end = draw.choice([(0, 4), (0, 4), tuple(sorted(draw.sample(range(5), 2)))])
            prompt = draw.randrange(3)
            held = kv.open(move, start, end, draw.randrange(microbatches))
            for at in range(draw.randrange(6)):
                tokens = (at + 1) * PAGE_TOKENS
                if index.adopt(held, links[prompt][: at + 1], tokens) is None:
                    break
                assert held.length == tokens
                adopted += 1
            names[move] = prompt
            continue
        if not names:
            continue
        name = draw.choice(list(names))
        held = kv.requests[name]
        if kind == "cancel":
            kv.free(name)
        elif kind == "cut" and held.length:
            try:
                kv.truncate(held, draw.randrange(held.length + 1))
            except UsageError:
                refused += 1
        elif kind == "step":
            at = held.length // PAGE_TOKENS
            wanted = links[names[name]][: at + 1]
            if at < 12 and index.adopt(held, wanted, (at + 1) * PAGE_TOKENS) is not None:
                adopted += 1
                continue
            microbatch = held.microbatch
            members = [h for h in kv.requests.values() if h.microbatch == microbatch]
            growth = [
                (other, other.length + draw.choice([1, 16, 37, *[-other.length % 16 or 16] * 3]))
                for other in members
                if other is held or draw.random() < 0.5
            ]
            before = used_pages(kv)
            try:
                kv.grow(growth)
            except KvShort:
                refused += 1
                assert used_pages(kv) <= before
            else:
                store.turn(microbatch, lambda m: _swapped(kv, m), draw.randrange(microbatches))
                kv.prepare_pages()
                for other, tokens in growth:
                    owner = next(n for n, h in kv.requests.items() if h is other)
                    at = other.length // PAGE_TOKENS
                    if owner in names and at < 12:
                        index.keep(other, links[names[owner]][: at + 1], tokens, ROWS)
                    kv.grown(other, tokens)
        if move % 10 == 0:
            check_books(kv, index)
    check_books(kv, index)
    assert refused > 10, "the arena was never short: the test tests nothing"
    assert adopted > 10, "nothing was shared: the test tests little"
    for name in list(kv.requests):
        kv.free(name)
    clear(index)
    assert (used_pages(kv), index.blocks, index.row_bytes) == (0, 0, 0)
    assert all(kv.allocators[0].room(m) == plan.pages_of_microbatch for m in range(microbatches))
    store.close()


def _swapped(kv: PagedKv, microbatch: int) -> list[np.ndarray]:
    resident = kv.allocators[0].resident
    pages = [
        table.held()[table.held() >= resident]
        for held in kv.requests.values()
        if held.microbatch == microbatch
        for table in held.tables.values()
    ]
    return [np.concatenate(pages) if pages else np.zeros(0, np.int64)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_full_attention_holds_what_the_ledger_books(moves: list[tuple[int, int]]) -> None:
    """The scheduler's ledger and the engine's pages are the same pages, to the page."""
    layout = KvLayout((SHAPE,), (KvClass(0, 0, (0, 1, 2)),))
    pages = 40
    kv = PagedKv(
        layout,
        [PageAllocator(pages + 1)],
        HotStore((SHAPE,), [pages + 1], torch.float32, [CPU]),
    )
    ledger = KvLedger(pages, PAGE_TOKENS)
    for name, tokens in moves:
        held = kv.requests.get(name)
        if held is None:
            allowed = ledger.try_reserve(name, tokens, 3)
            held = kv.open(name, 0, 3)
        elif tokens < held.length:
            kv.free(name)
            ledger.release(name)
            continue
        else:
            allowed = ledger.try_grow(name, tokens)
        assert kv.has_room([(held, tokens)]) == allowed
        if allowed:
            kv.grow([(held, tokens)])
            kv.grown(held, tokens)
        elif name not in ledger._held:
            kv.free(name)
        assert used_pages(kv) == ledger.used_pages


def test_a_window_keeps_a_bounded_number_of_pages() -> None:
    kv = make(10**4)
    held = kv.open("r", 0, 4)
    most = 0
    for tokens in range(1, 1500):
        kv.grow([(held, tokens)])
        kv.grown(held, tokens)
        table = held.tables[1]
        most = max(most, table.blocks - table.first)
    assert most <= LAYOUT.classes[1].blocks_for(10**6)
    assert held.tables[0].blocks == -(-1499 // PAGE_TOKENS)
    expected = LAYOUT.pages_for(1499, 0, 4)[0]
    assert used_pages(kv) <= expected <= used_pages(kv) + 4


def fill(kv: PagedKv, index: PrefixIndex, held: Held, links: list[bytes]) -> None:
    """Let a request compute the pages of these links, one after the other."""
    for at in range(held.length // PAGE_TOKENS, len(links)):
        tokens = (at + 1) * PAGE_TOKENS
        kv.grow([(held, tokens)])
        kv.prepare_pages()
        index.keep(held, links[: at + 1], tokens, ROWS + at)
        kv.grown(held, tokens)


def test_a_shared_page_is_copied_before_it_is_written() -> None:
    kv = make()
    index = PrefixIndex(kv, max_blocks=10, max_row_bytes=2**20)
    links = link_pages(list(range(48)))
    first = kv.open("first", 0, 4)
    fill(kv, index, first, links)
    for table in first.tables.values():
        kv.store.pools[0].keys[torch.from_numpy(table.held())] = 7.0
    second = kv.open("second", 0, 4)
    for at in range(3):
        rows = index.adopt(second, links[: at + 1], 16 * at + 16)
        assert rows is not None and (rows == at).all(), "what left with these pages"
    assert second.length == 48
    shared = second.tables[0].pages[:, 2].copy()
    assert (kv.allocators[0].holders[shared] == 3).all()
    kv.truncate(second, 40)
    assert index.adopt(second, links, 48) is None, "only whole chunks after whole chunks"
    kv.grow([(second, 41)])
    kv.prepare_pages()
    own = second.tables[0].pages[:, 2]
    assert not set(own) & set(shared)
    assert (kv.allocators[0].holders[shared] == 2).all()
    rows = kv.store.pools[0].keys
    assert (rows[torch.from_numpy(own)] == 7.0).all(), "the copy lost what came before"
    check_books(kv, index)


def test_kept_prompts_give_way_when_pages_run_short_the_ends_first() -> None:
    kv = make(48)
    index = PrefixIndex(kv, max_blocks=8, max_row_bytes=2**20)
    links = link_pages(list(range(96)))
    fill(kv, index, kv.open("first", 0, 4), links)
    kv.free("first")
    assert len(index) == 6 and used_pages(kv) == kv.allocators[0].idle_pages == 24
    other = kv.open("second", 0, 4)
    kv.grow([(other, 16 * 11)])
    left = len(index)
    assert 0 < left < 6
    check_books(kv, index)
    kv.free("second")
    again = kv.open("third", 0, 4)
    usable = [index.adopt(again, links[:n], 16 * n) is not None for n in range(1, 7)]
    assert usable == [True] * left + [False] * (6 - left), "what others stand on stays longest"


def test_what_is_kept_stays_within_its_bounds() -> None:
    kv = make(400)
    for bounds in (
        {"max_blocks": 4, "max_row_bytes": 2**20},
        {"max_blocks": 99, "max_row_bytes": 4 * ROWS.nbytes},
    ):
        index = PrefixIndex(kv, **bounds)
        long, other = link_pages(list(range(160))), link_pages(list(range(5, 69)))
        fill(kv, index, kv.open("long", 0, 4), long)
        assert len(index) == 4, "the beginning of what does not fit whole"
        assert (index.blocks, index.row_bytes) == (4, 4 * ROWS.nbytes)
        fill(kv, index, kv.open("other", 0, 4), other)
        fresh = kv.open("fresh", 0, 4)
        assert [index.adopt(fresh, other[:n], 16 * n) is not None for n in (1, 2, 3, 4)] == [
            True
        ] * 4
        assert len(index) == 4 and index.adopt(kv.open("old", 0, 4), long[:1], 16) is None
        check_books(kv, index)
        for name in ("long", "other", "fresh", "old"):
            kv.free(name)
        clear(index)
        assert used_pages(kv) == 0


def test_microbatches_and_layers_share_nothing() -> None:
    plan = plan_arena(90, 25, 3)
    store = SwapStore((SHAPE,), [plan], torch.float32)
    kv = PagedKv(LAYOUT, allocators_of([plan]), store)
    index = PrefixIndex(kv, max_blocks=8, max_row_bytes=2**20)
    links = link_pages(list(range(16)))
    first = kv.open("first", 0, 4, 1)
    kv.grow([(first, 16)])
    index.keep(first, links, 16, ROWS)
    kv.grown(first, 16)
    for name, held in {
        "microbatch": kv.open("a", 0, 4, 2),
        "layers": kv.open("b", 0, 3, 1),
    }.items():
        assert index.adopt(held, links, 16) is None, name
    assert index.adopt(kv.open("c", 0, 4, 1), links, 16) is not None
    assert not index.evict_one(2) and index.evict_one(1)
    check_books(kv, index)
    store.close()


def test_links_chain_and_scopes_keep_apart() -> None:
    a, b = link_pages(list(range(40))), link_pages([*range(16), 99, *range(17, 40)])
    assert len(a) == 2 and a[0] == b[0] and a[1] != b[1]
    assert link_pages(list(range(40)), b"other")[0] != a[0]
    assert link_pages(list(range(15))) == []
