"""What a stage does when the stage before it misbehaves: the request fails, the stage and its other
requests do not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from core.engine.weights.load_shard import load_shard
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.receipts import word_of
from core.runtime.network.channel import Channel, Listener, StreamIdentity, connect
from tests.miner.conftest import Start
from tests.town.chain import FakeChain
from tests.town.machines import Machine, greedy, reference
from tests.town.orders import DOMAIN, key
from tests.town.requester import Requester

MATCHER = key(40)
PROMPT = [5, 6, 7, 8, 9]


class Puppet:
    """Stage 0 in the hands of the test: real shard, real key, its own idea of the protocol."""

    def __init__(self, model_dir: Path, last: Machine) -> None:
        self.signer, self.layers, self.terms = key(90), t.LayerRange(0, 2), last.terms
        self.last = last
        self.shard = load_shard(model_dir, self.layers)
        self.tokens: list[wire.Token] = []
        self.rows = b""

    async def start(self) -> None:
        async def take(channel: Channel, frame: wire.Frame) -> wire.Pong | None:
            if isinstance(frame.message, wire.Token):
                self.tokens.append(frame.message)
            return wire.Pong() if isinstance(frame.message, wire.Ping) else None

        identity = StreamIdentity(self.signer, DOMAIN)
        self.listener = Listener(identity, take)
        await self.listener.start("127.0.0.1", 0)
        self.channel = await connect(
            self.last.endpoint, identity, expected=self.last.signer.address
        )

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.listener.port}"

    async def stop(self) -> None:
        await self.channel.close()
        await self.listener.close()

    def compute(self, ids: list[int]) -> bytes:
        """Rows of all these ids at once, as a stage would send them for a prompt."""
        import torch

        out = self.shard.forward(torch.tensor(ids), self.shard.new_cache())
        return out.numpy().astype("<f4").tobytes()

    def frame(
        self, requester: Requester, start: int, rows: bytes, **changes: Any
    ) -> wire.Activations:
        """A well-formed frame over `rows`."""
        row_bytes = 4 * self.shard.hidden
        count = len(rows) // row_bytes
        self.rows = self.rows[: start * row_bytes] + rows
        message = wire.Activations(
            order_hash=requester.order_hash,
            request=0,
            start=start,
            rows=count,
        )
        return msgspec.structs.replace(message, **changes)

    def end(self, requester: Requester, **changes: Any) -> wire.FinishRequest:
        """The end of request 0, with the word of it; `changes` are to that word.

        There is one boundary inside, of which nobody sees more than the root.
        """
        root = commit.to_hex(commit.rows_root(self.rows, 4 * self.shard.hidden))
        inner_root = commit.to_hex(commit.inner_root([commit.unhex(INSIDE)]))
        counts = len(PROMPT), len(self.tokens)
        leaf = t.RequestLeaf(0, "0x" + "11" * 32, root, *counts, inner_root)
        word = word_of(requester.order_hash, requester.plan_hash, 0, leaf)
        word = msgspec.structs.replace(word, **changes)
        return wire.FinishRequest(
            order_hash=requester.order_hash,
            request=0,
            tokens_in=len(PROMPT),
            tokens_out=len(self.tokens),
            word=t.SignedWord(word, signing.sign(self.signer, DOMAIN, word), [INSIDE]),
        )


Scene = tuple[Puppet, Requester]
INSIDE = "0x" + "55" * 32


@pytest.fixture
async def scene(start: Start, chain: FakeChain, model_dir: Path) -> AsyncIterator[Scene]:
    """A job of two requests with an honest last stage and a puppet as the first.

    Request 0 is submitted to the last.
    """
    (last,) = await start((2, 4))
    puppet = Puppet(model_dir, last)
    await puppet.start()
    requester = Requester(key(50), chain, [puppet, last])  # type: ignore[list-item]
    requester.order([(PROMPT, greedy(4)), (PROMPT, greedy(4))])
    accepted = (await puppet.channel.call(requester.proposal(1))).message
    assert isinstance(accepted, wire.Accepted)
    requester.match()
    channel = await connect(
        last.endpoint,
        requester.identity,
        expected=last.signer.address,
        handler=requester._handler_of(1),
    )
    assert isinstance((await channel.call(requester.opening(1))).message, wire.JobOpened)
    submit, payload = requester.submission(0)
    assert isinstance((await channel.call(submit, payload)).message, wire.Submitted)
    yield puppet, requester
    await channel.close()
    await puppet.stop()


async def serve_to_the_end(puppet: Puppet, requester: Requester) -> None:
    """Honest stage 0 for request 0, one row per token, from wherever the prompt was sent."""
    await serve_all_tokens(puppet, requester)
    await puppet.channel.send(puppet.end(requester))
    await requester.until(lambda: 0 in requester.receipts)


async def serve_all_tokens(puppet: Puppet, requester: Requester) -> None:
    """The same but for its end."""
    ids = list(PROMPT)
    while True:
        await requester.until(lambda: len(puppet.tokens) > len(ids) - len(PROMPT))
        token = puppet.tokens[len(ids) - len(PROMPT)]
        if token.finish:
            break
        ids.append(token.token)
        import torch

        cache = puppet.shard.new_cache()
        puppet.shard.forward(torch.tensor(PROMPT), cache)
        for fed in ids[len(PROMPT) :]:
            row = puppet.shard.forward(torch.tensor([fed]), cache)
        data = row.numpy().astype("<f4").tobytes()
        await puppet.channel.send(puppet.frame(requester, len(ids) - 1, data), data)


async def test_repeated_and_late_frames_change_nothing(scene: Scene, model_dir: Path) -> None:
    puppet, requester = scene
    rows = puppet.compute(PROMPT)
    prompt = puppet.frame(requester, 0, rows)
    for _ in range(3):
        await puppet.channel.send(prompt, rows)
    await serve_to_the_end(puppet, requester)
    await puppet.channel.send(prompt, rows)
    await puppet.channel.send(
        wire.FinishRequest(order_hash=requester.order_hash, request=0, tokens_in=1, tokens_out=1)
    )
    await requester.until(lambda: puppet.last.stage.counts["ends_late"] == 1)
    assert puppet.last.stage.counts["rows_repeated"] == 2
    assert puppet.last.stage.counts["rows_late"] == 1
    assert requester.tokens[0] == reference(model_dir, PROMPT, greedy(4), 0)
    assert len(requester.receipts[0]) == 1
    assert not requester.failures


async def test_a_trace_that_is_full_already_makes_no_frame_unreadable(scene: Scene) -> None:
    puppet, requester = scene
    rows = puppet.compute(PROMPT)
    full = [1, 2, 3] * wire.MAX_STAGES
    await puppet.channel.send(puppet.frame(requester, 0, rows, trace=full), rows)
    await requester.until(lambda: bool(puppet.tokens or puppet.listener.stats.counts))
    assert puppet.listener.stats.counts == {}
    assert puppet.tokens[0].trace is None


def spoilt(puppet: Puppet, requester: Requester, how: str) -> tuple[wire.Activations, bytes]:
    rows = puppet.compute(PROMPT)
    row_bytes = 4 * puppet.shard.hidden
    good = puppet.frame(requester, 0, rows)
    if how == "gap":
        return msgspec.structs.replace(good, start=1), rows
    if how == "too few bytes":
        return good, rows[:-1]
    if how == "halves that are whole":
        return msgspec.structs.replace(good, halved=True), rows
    if how == "halves of other rows":
        return msgspec.structs.replace(good, halved=True), rows[: len(rows) // 2]
    if how == "too many rows said":
        return msgspec.structs.replace(good, rows=2**20), rows
    if how == "past the prompt":
        longer = puppet.compute([*PROMPT, 1])
        return puppet.frame(requester, 0, longer), longer
    assert how == "not a number"
    broken = np.full(len(rows) // 4, np.nan, dtype="<f4").tobytes()
    assert len(broken) % row_bytes == 0
    return puppet.frame(requester, 0, broken), broken


@pytest.mark.parametrize(
    "how",
    [
        "too few bytes",
        "halves that are whole",
        "halves of other rows",
        "too many rows said",
        "past the prompt",
        "not a number",
    ],
)
async def test_a_bad_frame_fails_its_request_and_signs_nothing(scene: Scene, how: str) -> None:
    puppet, requester = scene
    message, payload = spoilt(puppet, requester, how)
    await puppet.channel.send(message, payload)
    await requester.until(lambda: bool(requester.failures))
    assert [failed.request for failed in requester.failures] == [0]
    assert requester.failures[0].code in ("E-CHECK-01", "E-WIRE-05")
    table = puppet.last.table
    assert table.jobs[requester.order_hash].over == {0: "failed"}
    assert table.active_requests == 0
    rows = puppet.compute(PROMPT)
    await puppet.channel.send(puppet.frame(requester, 0, rows), rows)
    assert (await puppet.channel.call(wire.Ping())).message == wire.Pong()
    assert puppet.last.stage.counts["rows_late"] == 1
    assert puppet.last.store.leaves(requester.order_hash, requester.plan_hash) == {}
    assert puppet.channel.is_open, "one bad request does not cost the stream of the others"


async def test_rows_that_are_missing_were_lost_on_the_way_and_accuse_nobody(scene: Scene) -> None:
    puppet, requester = scene
    message, payload = spoilt(puppet, requester, "gap")
    await puppet.channel.send(message, payload)
    await requester.until(lambda: bool(requester.failures))
    assert [(f.request, f.code) for f in requester.failures] == [(0, "E-NET-03")]
    assert puppet.last.store.leaves(requester.order_hash, requester.plan_hash) == {}
    assert puppet.channel.is_open


@pytest.mark.parametrize("counts", [(5, 5), (4, 4), (6, 3), (5, 3), (0, 8)])
async def test_counts_that_were_not_seen_are_not_signed(
    scene: Scene, counts: tuple[int, int]
) -> None:
    puppet, requester = scene
    rows = puppet.compute(PROMPT)
    await puppet.channel.send(puppet.frame(requester, 0, rows), rows)
    await requester.until(lambda: len(puppet.tokens) == 1)
    await puppet.channel.send(
        wire.FinishRequest(
            order_hash=requester.order_hash,
            request=0,
            tokens_in=counts[0],
            tokens_out=counts[1],
        )
    )
    await requester.until(lambda: bool(requester.failures))
    assert puppet.last.store.receipts(requester.order_hash, requester.plan_hash) == []


async def test_the_word_of_the_stage_before_is_kept(scene: Scene) -> None:
    puppet, requester = scene
    rows = puppet.compute(PROMPT)
    await puppet.channel.send(puppet.frame(requester, 0, rows), rows)
    await serve_to_the_end(puppet, requester)
    (kept,) = puppet.last.store.words(requester.order_hash, requester.plan_hash, 9)
    assert signing.is_signed_by(DOMAIN, kept.word, kept.signature, puppet.signer.address)
    leaf = requester.receipts[0][1].leaves[0]
    assert kept.word.out_root == leaf.in_root, "it proves what the receipt says came in"


SPOILT_WORDS: dict[str, dict[str, Any]] = {
    "other rows": {"out_root": "0x" + "77" * 32},
    "another request": {"request_index": 1},
    "another stage": {"stage": 1},
    "another order": {"order_hash": "0x" + "77" * 32},
    "another plan": {"plan_hash": "0x" + "77" * 32},
    "other counts": {"tokens_out": 3},
    "nothing inside": {"inner_root": t.ZERO_HASH},
    "something else inside": {"inner_root": "0x" + "77" * 32},
}
SPOILT_INSIDES: dict[str, list[str]] = {
    "no roots inside": [],
    "other roots inside": ["0x" + "77" * 32],
    "more roots inside": [INSIDE, INSIDE],
}


@pytest.mark.parametrize("how", ["withheld", "another's", *SPOILT_WORDS, *SPOILT_INSIDES])
async def test_a_word_that_does_not_fit_leaves_what_was_done_to_be_paid(
    scene: Scene, how: str
) -> None:
    puppet, requester = scene
    rows = puppet.compute(PROMPT)
    await puppet.channel.send(puppet.frame(requester, 0, rows), rows)
    await serve_all_tokens(puppet, requester)
    end = puppet.end(requester, **SPOILT_WORDS.get(how, {}))
    if how == "withheld":
        end = msgspec.structs.replace(end, word=None)
    if how == "another's":
        assert end.word is not None
        forged = signing.sign(key(91), DOMAIN, end.word.word)
        end = msgspec.structs.replace(end, word=t.SignedWord(end.word.word, forged, [INSIDE]))
    if how in SPOILT_INSIDES:
        word = msgspec.structs.replace(end.word, inner=SPOILT_INSIDES[how])
        end = msgspec.structs.replace(end, word=word)
    await puppet.channel.send(end)
    await requester.until(lambda: bool(requester.failures))
    assert [failed.lost for failed in requester.failures] == [puppet.signer.address]
    assert puppet.last.store.receipts(requester.order_hash, requester.plan_hash) == []
    last = puppet.last
    channel = await connect(last.endpoint, requester.identity, expected=last.signer.address)
    unsigned = (await channel.call(wire.CloseJob(requester.order_hash, [0]))).message
    assert isinstance(unsigned, wire.Failed), "the leaf is on disk, and is not signed for alone"
    cut = wire.Cut(requester.order_hash, 0, len(PROMPT), len(puppet.tokens))
    answer = (await channel.call(cut)).message
    assert isinstance(answer, wire.Receipt), answer
    assert answer.signed.receipt.tokens_out == len(puppet.tokens)
    await channel.close()
