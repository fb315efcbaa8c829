"""After whatever the chain did, the owner holds exactly the chain's events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.chain.chain import ChainEvent
from core.chain.follower import ChainPosition, EventBatch, EventFollower
from core.protocol.errors import ChainUnreachable
from tests.town.chain import FakeChain

START = 3
WINDOW = 5
MAX_BLOCKS = 7


class Reorganising(FakeChain):
    """Blocks with a few events each."""

    def __init__(self, *counts: int) -> None:
        super().__init__(blocks=0)
        self.add(counts)

    def add(self, counts: Iterable[int]) -> None:
        """A block for each number, with so many events."""
        for count in counts:
            self.grow()
            for _ in range(count):
                self.note("TaskRegistry", "E", {})

    def replace(self, counts: Iterable[int]) -> None:
        """Another chain behind the same address."""
        self.hashes.clear()
        self.log.clear()
        self.add(counts)

    def change_after(self, answers: int, depth: int, counts: list[int]) -> None:
        """Reorganise between two answers of one poll."""
        asked = itertools.count()

        def change() -> None:
            if next(asked) == answers:
                self.cut(depth)
                self.add(counts)

        self.before_answer = change

    def canonical(self) -> list[ChainEvent]:
        return [event for event in self.log if event.block_number >= START]


@dataclass
class Owner:
    """What a user of the follower does: apply, roll back, start over."""

    applied: list[ChainEvent] = field(default_factory=list)
    replacements: int = 0

    def take(self, batch: EventBatch) -> None:
        if batch.chain_replaced:
            self.replacements += 1
            self.applied.clear()
        elif batch.rolled_back_to is not None:
            self.applied = [e for e in self.applied if e.block_number <= batch.rolled_back_to]
        self.applied.extend(batch.events)


def follower(chain: Reorganising, position: ChainPosition | None = None) -> EventFollower:
    return EventFollower(
        chain, start_block=START, position=position, window=WINDOW, max_blocks=MAX_BLOCKS
    )


counts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


class FollowerMachine(RuleBasedStateMachine):
    @initialize(blocks=counts)
    def begin(self, blocks: list[int]) -> None:
        self.chain, self.owner = Reorganising(0, *blocks), Owner()
        self.follower = follower(self.chain)
        self.stored = ChainPosition()

    @rule(blocks=counts)
    def grow(self, blocks: list[int]) -> None:
        self.chain.add(blocks)

    @rule(depth=st.integers(1, WINDOW - 1), blocks=counts)
    def reorganise_within_the_window(self, depth: int, blocks: list[int]) -> None:
        self.chain.cut(depth)
        self.chain.add(blocks)

    @rule(depth=st.integers(WINDOW, 40), blocks=counts)
    def reorganise_beyond_the_window(self, depth: int, blocks: list[int]) -> None:
        self.chain.cut(depth)
        self.chain.add(blocks)

    @rule(depth=st.integers(1, 10))
    def lose_blocks(self, depth: int) -> None:
        self.chain.cut(depth)

    @rule(blocks=counts)
    def replace_the_chain(self, blocks: list[int]) -> None:
        self.chain.replace([0, *blocks])

    @rule()
    def poll(self) -> None:
        self.take(asyncio.run(self.follower.poll()))

    @rule(after=st.integers(0, 12), depth=st.integers(0, 8), blocks=counts)
    def poll_while_the_chain_changes(self, after: int, depth: int, blocks: list[int]) -> None:
        self.chain.change_after(after, depth, blocks)
        self.take(asyncio.run(self.follower.poll()))
        self.chain.before_answer = lambda: None

    @precondition(lambda self: self.stored.blocks)
    @rule()
    def restart_from_the_stored_position(self) -> None:
        position = msgspec.json.decode(msgspec.json.encode(self.stored), type=ChainPosition)
        self.follower = follower(self.chain, position)

    def take(self, batch: EventBatch) -> None:
        self.owner.take(batch)
        self.stored = batch.position

    @invariant()
    def the_position_fits_the_window(self) -> None:
        assert len(self.stored.blocks) <= WINDOW
        numbers = [number for number, _ in self.stored.blocks]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True

    @invariant()
    def no_event_is_held_twice(self) -> None:
        names = [(event.tx_hash, event.log_index) for event in self.owner.applied]
        assert len(names) == len(set(names))

    def teardown(self) -> None:
        if not hasattr(self, "chain"):
            return
        for _ in range(len(self.chain.hashes) // MAX_BLOCKS + 2):
            self.take(asyncio.run(self.follower.poll()))
        assert self.owner.applied == self.chain.canonical()


FollowerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
TestFollower = FollowerMachine.TestCase


async def test_long_histories_come_in_bounded_batches() -> None:
    chain, owner = Reorganising(*[1] * 40), Owner()
    polls = follower(chain)
    sizes = []
    while owner.applied != chain.canonical():
        batch = await polls.poll()
        sizes.append(len(batch.events))
        owner.take(batch)
    assert max(sizes) == MAX_BLOCKS
    assert owner.replacements == 0
    assert (await polls.poll()).events == []


async def test_a_reorganisation_within_the_window_undoes_only_what_is_gone() -> None:
    chain = Reorganising(*[1] * 9)
    polls = follower(chain)
    await polls.poll()
    chain.cut(2)
    chain.add([1, 1, 1])
    batch = await polls.poll()
    assert (batch.rolled_back_to, batch.chain_replaced) == (6, False)
    assert [e.block_number for e in batch.events] == [7, 8, 9]


async def test_another_chain_behind_the_same_address_is_reported_as_replaced() -> None:
    chain = Reorganising(*[1] * 9)
    polls = follower(chain)
    await polls.poll()
    chain.replace([1] * 6)
    batch = await polls.poll()
    assert (batch.rolled_back_to, batch.chain_replaced) == (START - 1, True)
    assert batch.events == chain.canonical()
    assert not (await polls.poll()).chain_replaced


async def test_a_chain_shorter_than_the_start_has_no_events_yet() -> None:
    chain = Reorganising(1)
    polls = follower(chain)
    assert (await polls.poll()).events == []
    chain.add([1, 1, 1])
    assert (await polls.poll()).events == chain.canonical()


@pytest.mark.parametrize("depth", range(1, WINDOW + 2))
@pytest.mark.parametrize("answers", range(11))
def test_a_chain_that_changes_between_two_answers_is_seen_whole(answers: int, depth: int) -> None:
    for unread, grown in itertools.product(range(3), range(9)):
        chain, owner = Reorganising(*[1] * 12), Owner()
        polls = follower(chain)
        for _ in range(2):
            owner.take(asyncio.run(polls.poll()))
        chain.add([1] * unread)
        chain.change_after(answers, depth, [1] * grown)
        owner.take(asyncio.run(polls.poll()))
        chain.before_answer = lambda: None
        for _ in range(3):
            owner.take(asyncio.run(polls.poll()))
        assert owner.applied == chain.canonical()


@pytest.mark.parametrize("failing", range(13))
def test_a_node_that_fails_halfway_changes_nothing(failing: int) -> None:
    chain, owner = Reorganising(*[1] * 12), Owner()
    polls = follower(chain)
    owner.take(asyncio.run(polls.poll()))
    chain.cut(3)
    chain.add([1] * 3)
    answers = itertools.count()

    def fail() -> None:
        if next(answers) == failing:
            raise ChainUnreachable("no answer")

    chain.before_answer = fail
    with contextlib.suppress(ChainUnreachable):
        owner.take(asyncio.run(polls.poll()))
    chain.before_answer = lambda: None
    for _ in range(3):
        owner.take(asyncio.run(polls.poll()))
    assert owner.applied == chain.canonical()


def test_a_position_survives_storage() -> None:
    position = ChainPosition(((3, "0xab"), (4, "0xcd")))
    raw = msgspec.json.encode(position)
    assert msgspec.json.decode(raw, type=ChainPosition) == position
    assert (position.last, ChainPosition().last) == (4, None)
    with pytest.raises(AttributeError):
        position.blocks = ()  # type: ignore[misc]
