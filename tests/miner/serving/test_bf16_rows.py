"""Rows of bfloat16 travel as what they are, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.protocol import commit, wire
from miner.serving import bf16_rows
from miner.serving.outbox import Outbox
from tests.miner.conftest import Start
from tests.town.chain import FakeChain
from tests.town.machines import greedy
from tests.town.orders import key
from tests.town.requester import Requester

MATCHER, REQUESTER = key(40), key(50)


@given(st.binary(min_size=2, max_size=400).filter(lambda b: len(b) % 2 == 0))
def test_halves_of_any_bits_come_back(upper: bytes) -> None:
    rows = bf16_rows.whole(upper)
    assert len(rows) == 2 * len(upper)
    assert bf16_rows.try_halve(rows) == upper


@given(st.integers(0, 999), st.integers(1, 0xFFFF))
def test_one_number_with_more_bits_keeps_all_whole(at: int, bits: int) -> None:
    rows = np.frombuffer(bf16_rows.whole(bytes(2000)), "<u4").copy()
    rows[at] |= bits
    assert bf16_rows.try_halve(rows.tobytes()) is None


def test_values_are_those_of_bfloat16() -> None:
    numbers = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    rows = numbers.float().numpy().astype("<f4").tobytes()
    upper = bf16_rows.try_halve(rows)
    assert upper == numbers.view(torch.int16).numpy().astype("<i2").tobytes()
    assert bf16_rows.whole(upper) == rows


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
async def test_stages_in_bfloat16_send_half_as_much_and_commit_to_the_same(
    numerics: str, start: Start, chain: FakeChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[wire.Activations, int]] = []
    put = Outbox.put

    def watched(self: Outbox, message: wire.Push, payload: bytes = b"", *more: object) -> None:
        if isinstance(message, wire.Activations):
            sent.append((message, len(payload)))
        put(self, message, payload, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Outbox, "put", watched)
    machines = await start((0, 2), (2, 4), numerics=numerics)
    requester = Requester(REQUESTER, chain, machines)
    requester.order([([5, 6, 7, 8, 9], greedy(6)), ([1], greedy(6))])
    await requester.run_all(MATCHER)
    is_halved, width = numerics == "bfloat16", machines[0].shard.hidden
    assert len(sent) >= 12
    for message, size in sent:
        assert message.halved == is_halved
        assert size == message.rows * width * (2 if is_halved else 4)
    boundaries = []
    for stage, side in ((0, "out"), (1, "in")):
        frame = await requester.channels[stage].call(
            wire.FetchRows(
                order_hash=requester.order_hash, request=0, side=side, start=0, count=1000
            )
        )
        boundaries.append(bytes(frame.payload))
        leaf = requester.receipts[0][stage].leaves[0]
        root = leaf.out_root if side == "out" else leaf.in_root
        assert commit.to_hex(commit.rows_root(boundaries[-1], 4 * width)) == root
    assert boundaries[0] == boundaries[1] and len(boundaries[0]) == 10 * 4 * width
    await requester.close()
