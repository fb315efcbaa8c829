"""The ledger of KV pages: exact, transactional, and strict with its callers."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from core.batching import KvLedger, LedgerError


def test_a_request_holds_whole_pages_on_every_layer():
    ledger = KvLedger(100, page_tokens=16)
    assert ledger.try_reserve("a", 17, layers=3)
    assert ledger.used_pages == 6
    assert ledger.release("a") == 6
    assert ledger.used_pages == 0


def test_growth_inside_a_page_takes_no_page():
    ledger = KvLedger(4, page_tokens=16)
    assert ledger.try_reserve("a", 1, layers=2)
    assert ledger.try_grow("a", 16)
    assert ledger.used_pages == 2
    assert ledger.try_grow("a", 17)
    assert ledger.used_pages == 4


def test_a_refusal_changes_nothing_and_is_counted():
    ledger = KvLedger(4, page_tokens=16)
    assert ledger.try_reserve("a", 48)
    assert not ledger.try_reserve("b", 32)
    assert not ledger.try_grow("a", 65)
    assert ledger.refusals == 2
    assert (ledger.used_pages, ledger.requests) == (3, 1)
    assert ledger.try_grow("a", 48)  # which it still holds, and no less


def test_the_peak_is_the_most_ever_held_at_once():
    ledger = KvLedger(10, page_tokens=1)
    ledger.try_reserve("a", 7)
    ledger.release("a")
    ledger.try_reserve("b", 4)
    assert ledger.peak_pages == 7


def test_room_for_tokens_is_rounded_down_to_whole_pages_per_layer():
    assert KvLedger.of_tokens(33, layers=3, page_tokens=16).pages == 6
    assert KvLedger.of_tokens(15, layers=3, page_tokens=16).pages == 0


@pytest.mark.parametrize(
    "move",
    [
        lambda ledger: ledger.try_reserve("here", 1),
        lambda ledger: ledger.try_reserve("new", -1),
        lambda ledger: ledger.try_reserve("new", 1, layers=0),
        lambda ledger: ledger.try_grow("new", 1),
        lambda ledger: ledger.try_grow("here", 4),
        lambda ledger: ledger.release("new"),
        lambda ledger: KvLedger(-1),
        lambda ledger: KvLedger(1, page_tokens=0),
    ],
)
def test_illegal_moves_are_errors_and_change_nothing(move):
    ledger = KvLedger(10, page_tokens=1)
    ledger.try_reserve("here", 5)
    with pytest.raises(LedgerError):
        move(ledger)
    assert (ledger.used_pages, ledger.requests) == (5, 1)


class LedgerAgainstModel(RuleBasedStateMachine):
    """Any order of moves agrees with a dictionary that recounts everything each time."""

    requests = Bundle("requests")

    def __init__(self):
        super().__init__()
        self.ledger = KvLedger(40, page_tokens=4)
        self.held: dict[int, tuple[int, int]] = {}
        self.next = 0
        self.peak = 0

    def _pages(self, held):
        return sum(layers * -(-tokens // 4) for tokens, layers in held.values())

    @rule(target=requests, tokens=st.integers(0, 60), layers=st.integers(1, 4))
    def reserve(self, tokens, layers):
        self.next += 1
        wanted = self.held | {self.next: (tokens, layers)}
        assert self.ledger.try_reserve(self.next, tokens, layers) == (self._pages(wanted) <= 40)
        if self._pages(wanted) <= 40:
            self.held = wanted
        return self.next

    @rule(request=requests, more=st.integers(0, 30))
    def grow(self, request, more):
        if request not in self.held:
            with pytest.raises(LedgerError):
                self.ledger.try_grow(request, more)
            return
        tokens, layers = self.held[request]
        wanted = self.held | {request: (tokens + more, layers)}
        assert self.ledger.try_grow(request, tokens + more) == (self._pages(wanted) <= 40)
        if self._pages(wanted) <= 40:
            self.held = wanted

    @rule(request=requests)
    def release(self, request):
        if request not in self.held:
            with pytest.raises(LedgerError):
                self.ledger.release(request)
            return
        before = self._pages(self.held)
        del self.held[request]
        assert self.ledger.release(request) == before - self._pages(self.held)

    @invariant()
    def books_agree(self):
        used = self._pages(self.held)
        self.peak = max(self.peak, used)
        assert self.ledger.used_pages == used <= self.ledger.pages
        assert self.ledger.free_pages == 40 - used
        assert self.ledger.peak_pages == self.peak
        assert self.ledger.requests == len(self.held)


TestLedgerAgainstModel = LedgerAgainstModel.TestCase
TestLedgerAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
