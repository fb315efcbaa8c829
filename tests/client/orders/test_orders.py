"""An order commits to each prompt, and a prompt that does not fit says by how much."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.orders.orders import Prompt, PromptBatch, make_prompt
from core.protocol import commit
from core.protocol.errors import ContextTooLong, UsageError
from core.protocol.types import SamplingParams
from tests.town.orders import MODEL_ID, SPEC, prompts, signed_order

sampled = st.builds(
    SamplingParams,
    temperature_micro=st.integers(0, 2**32 - 1),
    top_k=st.integers(0, 2**32 - 1),
    max_new_tokens=st.integers(1, 2**20),
    seed=st.integers(0, 2**63 - 1),
)
a_prompt = st.builds(
    Prompt,
    custom_id=st.text(max_size=5),
    ids=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5).map(tuple),
    sampling=sampled,
    salt=st.binary(min_size=32, max_size=32),
)


@given(st.lists(a_prompt, min_size=1, max_size=9))
def test_every_opening_verifies_under_the_signed_roots_and_nowhere_else(ps: list[Prompt]) -> None:
    batch = PromptBatch.of(ps)
    for index, prompt in enumerate(ps):
        opening = batch.opening(index)
        for root, leaf, proof in (
            (
                batch.input_root,
                commit.prompt_leaf(index, prompt.salt, prompt.ids),
                opening.prompt_proof,
            ),
            (
                batch.sampling_root,
                commit.sampling_leaf(index, prompt.sampling),
                opening.sampling_proof,
            ),
        ):
            siblings = [commit.unhex(h) for h in proof]
            hashed = commit.leaf_hash(leaf)
            assert commit.verify_proof(root, len(ps), index, hashed, siblings)
            assert not commit.verify_proof(root, len(ps), index + 1, hashed, siblings)
            assert not commit.verify_proof(
                root, len(ps), index, commit.leaf_hash(leaf + b"x"), siblings
            )


def test_order_carries_the_batch_and_its_caps() -> None:
    batch = PromptBatch.of(prompts(5))
    order = signed_order(batch).order
    assert order.model_id == MODEL_ID
    assert order.input_root == commit.to_hex(batch.input_root)
    assert order.sampling_root == commit.to_hex(batch.sampling_root)
    assert (order.requests, order.max_tokens_in, order.max_tokens_out) == (5, 17, 20)
    assert order.numerics_profile == SPEC.numerics_profile
    assert msgspec.json.decode(msgspec.json.encode(order), type=type(order)) == order


def test_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PromptBatch.of([])


def test_context_too_long_has_the_numbers() -> None:
    sampling = SamplingParams(max_new_tokens=20)
    with pytest.raises(ContextTooLong) as caught:
        make_prompt("a", range(100), sampling, 110, bytes)
    assert caught.value.details == {
        "prompt_tokens": 100,
        "max_new_tokens": 20,
        "context_tokens": 110,
    }
    assert "exceed the context of 110 by 10" in caught.value.why
    assert make_prompt("a", range(90), sampling, 110, bytes).salt == bytes(32)


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        make_prompt("a", [], SamplingParams(), 100, bytes)


def test_repr_hides_the_prompt() -> None:
    batch = PromptBatch.of([Prompt("mine", (31337, 4242), SamplingParams(), b"\x07" * 32)])
    shown = repr(batch) + repr(batch.prompts)
    assert "mine" in shown
    assert "31337" not in shown
    assert repr(b"\x07" * 32) not in shown
