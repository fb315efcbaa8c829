"""Leases are all or nothing, end once, survive telemetry, and the first to come is woken first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.routing.reservations import MEMORY_MS, MOST, SKEW_MS, LeaseError, Need, Reservations

NAMES = [f"r{i}" for i in range(6)]
HOSTS = ["a", "b", "c"]


def two_hosts() -> Reservations:
    book = Reservations()
    book.announce("a", 2, 100)
    book.announce("b", 1, 100)
    return book


def test_hold_takes_every_machine_or_none() -> None:
    book = two_hosts()
    both = {"a": Need(1, 60), "b": Need(1, 60)}
    assert book.hold("x", both, 0, 100)
    assert (book.free("a"), book.free("b")) == (Need(1, 40), Need(0, 40))
    assert not book.hold("y", both, 1, 100)
    assert (book.free("a"), book.free("b")) == (Need(1, 40), Need(0, 40))
    assert not book.hold("y", {"a": Need(1, 41)}, 1, 100)
    assert book.hold("y", {"a": Need(1, 40)}, 1, 100)


def test_unknown_machine_has_no_room() -> None:
    book = two_hosts()
    assert not book.hold("x", {"nobody": Need(1)}, 0, 10)
    assert book.free("nobody") == Need(0, 0)
    assert book.hold("x", {"nobody": Need(1)}, 0, 10, agreed=True)
    assert book.promised(1) == {"nobody": 1}
    book.announce("nobody", 3)
    assert book.free("nobody").slots == 2


def test_holding_again_replaces_and_counts_its_own_as_free() -> None:
    book = two_hosts()
    assert book.hold("x", {"a": Need(2, 100)}, 0, 10)
    assert book.hold("x", {"a": Need(1, 100), "b": Need(1)}, 1, 20)
    assert book.free("a") == Need(1, 0)
    assert book.used(1) == {"a": Need(1, 100), "b": Need(1, 0)}
    lease = book.lease("x")
    assert lease is not None and lease.until_ms == 20


def test_release_twice_is_once() -> None:
    book = two_hosts()
    book.hold("x", {"a": Need(1)}, 0, 10)
    assert book.release("x", 1)
    assert not book.release("x", 2)
    assert book.free("a") == Need(2, 100) and len(book) == 0


def test_lease_ends_after_its_time() -> None:
    book = two_hosts()
    book.hold("x", {"a": Need(1)}, 0, 10)
    book.hold("y", {"a": Need(1)}, 0, 50)
    assert book.expire(10) == ()
    assert book.expire(11) == ("x",)
    assert book.free("a").slots == 1
    assert book.used(51)["a"] == Need(0, 0)


def test_illegal_moves_are_refused() -> None:
    book = two_hosts()
    book.hold("x", {"a": Need(1)}, 0, 10)
    with pytest.raises(LeaseError):
        book.wait("x", 1)
    with pytest.raises(LeaseError):
        book.hold("y", {"a": Need(1)}, 10, 9)
    with pytest.raises(LeaseError):
        book.hold("y", {"a": Need(-1)}, 0, 9)
    with pytest.raises(LeaseError):
        book.hold("y", {"a": Need(1, MOST + 1)}, 0, 9)
    with pytest.raises(LeaseError):
        book.failed("y")
    with pytest.raises(LeaseError):
        book.announce("a", -1)
    assert book.used(0) == {"a": Need(1, 0), "b": Need(0, 0)}


def test_who_waits_is_woken_in_order_and_only_when_room_appears() -> None:
    book = two_hosts()
    book.hold("x", {"b": Need(1)}, 0, 100)
    assert not book.hold("first", {"b": Need(1)}, 1, 100)
    assert (book.wait("first", 1), book.wait("second", 2), book.wait("first", 3)) == (0, 1, 0)
    assert book.due() is None
    book.release("x", 4)
    assert book.due() == "first"
    assert not book.hold("second", {"b": Need(1)}, 5, 100), "nobody overtakes"
    assert not book.hold("newcomer", {"a": Need(1)}, 5, 100)
    assert book.hold("first", {"b": Need(1)}, 5, 100)
    assert book.waiting() == ("second",)
    assert book.due() == "second" or book.due() is None
    book.failed("second")
    assert book.due() is None
    book.release("first", 6)
    assert book.due() == "second"


def test_who_gives_up_lets_the_next_one_try() -> None:
    book = two_hosts()
    book.hold("x", {"b": Need(1)}, 0, 100)
    book.wait("large", 1)
    book.wait("small", 2)
    book.failed("large")
    assert book.release("large", 3)
    assert book.due() == "small"


def test_who_waits_for_other_machines_neither_blocks_nor_is_blocked() -> None:
    book = two_hosts()
    book.hold("on a", {"a": Need(2)}, 0, 100)
    book.hold("on b", {"b": Need(1)}, 0, 100)
    for name, among in (("x", "a"), ("y", "ab"), ("z", "b"), ("w", "c")):
        book.wait(name, 1, frozenset(among))
    assert (book.claimed("x"), book.claimed("w"), book.claimed("new")) == (
        frozenset(),
        {"a", "b"},
        {"a", "b", "c"},
    )
    book.announce("c", 1)
    assert book.due() == "x", "who came first is asked first, whatever became free"
    book.failed("x")
    assert book.due() == "w", "y wants what x waits for, and z what y waits for"
    assert book.hold("w", {"c": Need(1)}, 2, 100)
    assert not book.hold("new", {"b": Need(0)}, 2, 100)
    book.release("x", 3)
    assert book.due() == "y"
    book.failed("y")
    assert book.due() is None


def test_what_changed_is_told_once() -> None:
    book = two_hosts()
    assert book.touched() == {"a", "b"} and book.touched() == frozenset()
    version = book.version
    book.announce("a", 2, 100)
    assert book.version == version and book.touched() == frozenset(), "it said so before"
    book.hold("x", {"a": Need(1)}, 0, 10)
    assert book.touched() == {"a"}
    book.expire(11)
    assert book.touched() == {"a"}
    book.observe("b", 1, 0, 12, 12)
    book.observe("b", 1, 0, 13, 13)
    assert book.touched() == {"b"} and book.touched() == frozenset()
    book.forget("b")
    assert book.touched() == {"b"}


def test_telemetry_adds_what_others_use_and_never_takes_back_a_promise() -> None:
    book = two_hosts()
    book.hold("x", {"a": Need(1, 50)}, 100, 10_000)
    assert book.observe("a", 0, 0, 200, 210)
    assert book.free("a") == Need(1, 50), "its counters do not show the request yet"
    assert book.observe("a", 2, 80, 300, 310)
    assert book.free("a") == Need(0, 20), "30 tokens and a slot belong to others"
    book.release("x", 320)
    assert book.observe("a", 2, 80, 315, 330)
    assert book.free("a") == Need(1, 70), "when it said so, our lease still ran"
    assert book.observe("a", 1, 30, 340, 350)
    assert book.free("a") == Need(1, 70)
    assert book.observe("a", 0, 0, 360, 370)
    assert book.free("a") == Need(2, 100)


def test_report_from_before_a_lease_is_not_mistaken_for_it() -> None:
    book = two_hosts()
    book.hold("x", {"a": Need(1, 50)}, 100, 10_000)
    assert book.observe("a", 1, 50, 90, 110)
    assert book.free("a") == Need(0, 0)


def test_late_absurd_and_unknown_reports_change_nothing() -> None:
    book = two_hosts()
    now = 10 * MEMORY_MS
    assert book.observe("a", 1, 10, now, now)
    free = book.free("a")
    assert not book.observe("a", 0, 0, now, now)
    assert not book.observe("a", 0, 0, now - 1, now)
    assert not book.observe("b", 0, 0, now - MEMORY_MS - 1, now)
    assert not book.observe("a", -1, 0, now + 1, now)
    assert not book.observe("a", 2**70, 0, now + 1, now)
    assert not book.observe("a", 0, 0, now + SKEW_MS + 1, now)
    assert not book.observe("stranger", 0, 0, now, now)
    assert book.free("a") == free
    assert (book.ignored.late, book.ignored.absurd, book.ignored.unknown) == (3, 3, 1)


def test_machine_that_leaves_names_the_leases_to_route_anew() -> None:
    book = two_hosts()
    book.hold("x", {"a": Need(1), "b": Need(1)}, 0, 10)
    book.hold("y", {"a": Need(1)}, 0, 10)
    assert book.forget("b") == ("x",)
    assert book.release("x", 1)
    book.announce("b", 1, 100)
    assert book.free("b") == Need(1, 100)


def test_shrunken_machine_takes_nothing_until_enough_ended() -> None:
    book = two_hosts()
    book.hold("x", {"a": Need(2, 80)}, 0, 10)
    book.announce("a", 1, 40)
    assert book.free("a") == Need(-1, -40)
    assert not book.hold("y", {"a": Need(0, 1)}, 1, 10)
    book.release("x", 2)
    assert book.hold("y", {"a": Need(1, 40)}, 3, 10)


def test_owners_take_turns_and_each_ones_own_stay_in_order() -> None:
    book = Reservations()
    for number in range(3):
        book.wait(f"a{number}", 0, owner="a")
    book.wait("b0", 1, owner="b")
    book.wait("c0", 2, owner="c")
    book.wait("b1", 3, owner="b")
    assert book.waiting() == ("a0", "b0", "c0", "a1", "b1", "a2")
    book.release("a0", 4)
    book.release("a1", 5)
    book.wait("a3", 6, owner="a")
    assert book.waiting() == ("b0", "c0", "b1", "a2", "a3"), "nobody passes its own"


class Book(RuleBasedStateMachine):
    """Any sequence of moves keeps every machine's count equal to the sum of the leases that run."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.book = Reservations()
        self.rooms = {host: Need(3, 50) for host in HOSTS}
        for host, room in self.rooms.items():
            self.book.announce(host, room.slots, room.kv_tokens)

    needs = st.dictionaries(
        st.sampled_from(HOSTS),
        st.builds(Need, st.integers(0, 3), st.integers(0, 30), st.integers(0, 7)),
        min_size=1,
    )

    @rule(name=st.sampled_from(NAMES), needs=needs, lasts=st.integers(0, 20), agreed=st.booleans())
    def hold(self, name: str, needs: dict[str, Need], lasts: int, agreed: bool) -> None:
        free = {host: self.book.free(host) for host in HOSTS}
        waits = self.book.waiting()
        fresh = self.book.lease(name) is None
        held = self.book.hold(name, needs, self.now, self.now + lasts, agreed=agreed)
        if agreed:
            assert held
        elif held and fresh:
            assert not waits or waits[0] == name
            self.book.used(self.now)
            assert all(
                need.slots <= max(free[host].slots, self.book.free(host).slots + need.slots)
                for host, need in needs.items()
            )

    @rule(name=st.sampled_from(NAMES))
    def release(self, name: str) -> None:
        self.book.release(name, self.now)
        assert self.book.lease(name) is None and name not in self.book.waiting()

    @rule(name=st.sampled_from(NAMES))
    def wait(self, name: str) -> None:
        if self.book.lease(name) is None:
            before = self.book.waiting()
            place = self.book.wait(name, self.now)
            assert self.book.waiting()[place] == name
            if name not in before:
                assert self.book.waiting() == (*before, name)

    @rule(ms=st.integers(0, 15))
    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.book.expire(self.now)

    @rule(host=st.sampled_from(HOSTS), slots=st.integers(-1, 5), tokens=st.integers(-1, 60))
    def observe(self, host: str, slots: int, tokens: int) -> None:
        held = {name: self.book.lease(name) for name in NAMES}
        self.book.observe(host, slots, tokens, self.now, self.now)
        assert held == {name: self.book.lease(name) for name in NAMES}

    @precondition(lambda self: self.book.due() is not None)
    @rule()
    def wake(self) -> None:
        due = self.book.due()
        assert due is not None and self.book.waiting()[0] == due
        self.book.failed(due)
        assert self.book.due() is None

    @invariant()
    def counts_add_up(self) -> None:
        leases = [lease for name in NAMES if (lease := self.book.lease(name))]
        for host, room in self.rooms.items():
            slots = sum(lease.needs.get(host, Need(0, 0)).slots for lease in leases)
            tokens = sum(lease.needs.get(host, Need(0, 0)).kv_tokens for lease in leases)
            free = self.book.free(host)
            assert free.slots <= room.slots - slots
            assert free.kv_tokens <= room.kv_tokens - tokens
            wished = sum(lease.needs.get(host, Need(0, 0)).wished for lease in leases)
            assert self.book.wished(host) == wished


TestBook = Book.TestCase
TestBook.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
