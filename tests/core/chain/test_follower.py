"""After whatever the chain did, the owner holds exactly the chain's events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.chain.chain import ChainEvent
from core.chain.follower import ChainPosition, EventBatch, EventFollower
from core.protocol.errors import ChainUnreachable

START = 3
WINDOW = 5
MAX_BLOCKS = 7


@dataclass
class FakeChain:
    """Blocks with unique hashes and a few events each. `interrupt` runs before every answer."""

    blocks: list[tuple[str, list[ChainEvent]]] = field(default_factory=list)
    interrupt: Callable[[], None] = lambda: None
    serial: itertools.count[int] = field(default_factory=itertools.count)

    def grow(self, counts: list[int]) -> None:
        for count in counts:
            number, hash_ = len(self.blocks), f"0x{next(self.serial):064x}"
            events = [
                ChainEvent("TaskRegistry", "E", {}, number, hash_, f"{hash_}-{i}", i)
                for i in range(count)
            ]
            self.blocks.append((hash_, events))

    def cut(self, depth: int) -> None:
        del self.blocks[max(1, len(self.blocks) - depth) :]

    def change_after(self, answers: int, depth: int, counts: list[int]) -> None:
        """Reorganise between two answers of one poll."""
        asked = itertools.count()

        def change() -> None:
            if next(asked) == answers:
                self.cut(depth)
                self.grow(counts)

        self.interrupt = change

    def canonical(self) -> list[ChainEvent]:
        return [event for _, events in self.blocks[START:] for event in events]

    async def block_number(self) -> int:
        self.interrupt()
        return len(self.blocks) - 1

    async def block_hash(self, number: int) -> str | None:
        self.interrupt()
        return self.blocks[number][0] if number < len(self.blocks) else None

    async def events(self, first_block: int, last_block: int) -> list[ChainEvent]:
        self.interrupt()
        return [e for _, events in self.blocks[first_block : last_block + 1] for e in events]


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


def follower(chain: FakeChain, position: ChainPosition | None = None) -> EventFollower:
    return EventFollower(
        chain, start_block=START, position=position, window=WINDOW, max_blocks=MAX_BLOCKS
    )


counts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


class FollowerMachine(RuleBasedStateMachine):
    @initialize(blocks=counts)
    def begin(self, blocks: list[int]) -> None:
        self.chain, self.owner = FakeChain(), Owner()
        self.chain.grow([0, *blocks])
        self.follower = follower(self.chain)
        self.stored = ChainPosition()

    @rule(blocks=counts)
    def grow(self, blocks: list[int]) -> None:
        self.chain.grow(blocks)

    @rule(depth=st.integers(1, WINDOW - 1), blocks=counts)
    def reorganise_within_the_window(self, depth: int, blocks: list[int]) -> None:
        self.chain.cut(depth)
        self.chain.grow(blocks)

    @rule(depth=st.integers(WINDOW, 40), blocks=counts)
    def reorganise_beyond_the_window(self, depth: int, blocks: list[int]) -> None:
        self.chain.cut(depth)
        self.chain.grow(blocks)

    @rule(depth=st.integers(1, 10))
    def lose_blocks(self, depth: int) -> None:
        self.chain.cut(depth)

    @rule(blocks=counts)
    def replace_the_chain(self, blocks: list[int]) -> None:
        self.chain.blocks.clear()
        self.chain.grow([0, *blocks])

    @rule()
    def poll(self) -> None:
        self.take(asyncio.run(self.follower.poll()))

    @rule(after=st.integers(0, 12), depth=st.integers(0, 8), blocks=counts)
    def poll_while_the_chain_changes(self, after: int, depth: int, blocks: list[int]) -> None:
        self.chain.change_after(after, depth, blocks)
        self.take(asyncio.run(self.follower.poll()))
        self.chain.interrupt = lambda: None

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
        names = [event.tx_hash for event in self.owner.applied]
        assert len(names) == len(set(names))

    def teardown(self) -> None:
        if not hasattr(self, "chain"):
            return
        for _ in range(len(self.chain.blocks) // MAX_BLOCKS + 2):
            self.take(asyncio.run(self.follower.poll()))
        assert self.owner.applied == self.chain.canonical()


FollowerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
TestFollower = FollowerMachine.TestCase


async def test_long_histories_come_in_bounded_batches() -> None:
    chain, owner = FakeChain(), Owner()
    chain.grow([1] * 40)
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
    chain = FakeChain()
    chain.grow([1] * 9)
    polls = follower(chain)
    await polls.poll()
    chain.cut(2)
    chain.grow([1, 1, 1])
    batch = await polls.poll()
    assert (batch.rolled_back_to, batch.chain_replaced) == (6, False)
    assert [e.block_number for e in batch.events] == [7, 8, 9]


async def test_another_chain_behind_the_same_address_is_reported_as_replaced() -> None:
    chain = FakeChain()
    chain.grow([1] * 9)
    polls = follower(chain)
    await polls.poll()
    chain.blocks.clear()
    chain.grow([1] * 6)
    batch = await polls.poll()
    assert (batch.rolled_back_to, batch.chain_replaced) == (START - 1, True)
    assert batch.events == chain.canonical()
    assert not (await polls.poll()).chain_replaced


async def test_a_chain_shorter_than_the_start_has_no_events_yet() -> None:
    chain = FakeChain()
    chain.grow([1])
    polls = follower(chain)
    assert (await polls.poll()).events == []
    chain.grow([1, 1, 1])
    assert (await polls.poll()).events == chain.canonical()


@pytest.mark.parametrize("depth", range(1, WINDOW + 2))
@pytest.mark.parametrize("answers", range(11))
def test_a_chain_that_changes_between_two_answers_is_seen_whole(answers: int, depth: int) -> None:
    for unread, grown in itertools.product(range(3), range(9)):
        chain, owner = FakeChain(), Owner()
        chain.grow([1] * 12)
        polls = follower(chain)
        for _ in range(2):
            owner.take(asyncio.run(polls.poll()))
        chain.grow([1] * unread)
        chain.change_after(answers, depth, [1] * grown)
        owner.take(asyncio.run(polls.poll()))
        chain.interrupt = lambda: None
        for _ in range(3):
            owner.take(asyncio.run(polls.poll()))
        assert owner.applied == chain.canonical()


@pytest.mark.parametrize("failing", range(13))
def test_a_node_that_fails_halfway_changes_nothing(failing: int) -> None:
    chain, owner = FakeChain(), Owner()
    chain.grow([1] * 12)
    polls = follower(chain)
    owner.take(asyncio.run(polls.poll()))
    chain.cut(3)
    chain.grow([1] * 3)
    answers = itertools.count()

    def fail() -> None:
        if next(answers) == failing:
            raise ChainUnreachable("no answer")

    chain.interrupt = fail
    with contextlib.suppress(ChainUnreachable):
        owner.take(asyncio.run(polls.poll()))
    chain.interrupt = lambda: None
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
