"""What each root commits to, and that nothing else opens it."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocol import commit
from core.protocol import types as t

leaf_lists = st.lists(st.binary(max_size=40), min_size=1, max_size=40)
hashes32 = st.binary(min_size=32, max_size=32).map(commit.to_hex)
u32 = st.integers(0, 2**32 - 1)
request_leaves = st.lists(
    st.builds(
        t.RequestLeaf,
        request_index=u32,
        in_root=hashes32,
        out_root=hashes32,
        tokens_in=st.integers(0, 2**28 - 1),
        tokens_out=st.integers(0, 2**28 - 1),
    ),
    max_size=12,  # so that no sum is beyond 32 bits
    unique_by=lambda leaf: leaf.request_index,
).map(lambda leaves: sorted(leaves, key=lambda leaf: leaf.request_index))


def opened(leaves: list[bytes], index: int) -> tuple[bytes, bytes, list[bytes]]:
    hashes = [commit.leaf_hash(leaf) for leaf in leaves]
    return commit.root_of_hashes(hashes), hashes[index], commit.merkle_proof(hashes, index)


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8 % len(data)] ^= 1 << bit % 8
    return bytes(changed)


@given(leaf_lists)
def test_a_proof_of_every_index_verifies(leaves: list[bytes]) -> None:
    hashes = [commit.leaf_hash(leaf) for leaf in leaves]
    root = commit.merkle_root(leaves)
    for index in range(len(leaves)):
        proof = commit.merkle_proof(hashes, index)
        assert commit.verify_proof(root, len(leaves), index, hashes[index], proof)


@given(leaf_lists, st.data())
def test_a_flipped_bit_of_root_leaf_or_proof_is_refused(
    leaves: list[bytes], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(leaves) - 1))
    bit = data.draw(st.integers(0, 255))
    root, leaf, proof = opened(leaves, index)
    count = len(leaves)
    assert not commit.verify_proof(flip(root, bit), count, index, leaf, proof)
    assert not commit.verify_proof(root, count, index, flip(leaf, bit), proof)
    for level in range(len(proof)):
        changed = [*proof[:level], flip(proof[level], bit), *proof[level + 1 :]]
        assert not commit.verify_proof(root, count, index, leaf, changed)


@given(st.integers(1, 40), st.data())
def test_no_other_index_or_count_opens_a_leaf(count: int, data: st.DataObject) -> None:
    leaves = [i.to_bytes(2, "big") for i in range(count)]
    index = data.draw(st.integers(0, count - 1))
    root, leaf, proof = opened(leaves, index)
    for other in {*range(-1, count + 2), index ^ 1, index + 2**32} - {index}:
        assert not commit.verify_proof(root, count, other, leaf, proof)
    for other in {0, -1, *range(1, 2 * count + 2), 2**32, 2**40} - {count}:
        assert not commit.verify_proof(root, other, index, leaf, proof)


@given(leaf_lists, st.data())
def test_a_shorter_or_longer_proof_is_refused(leaves: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(leaves) - 1))
    root, leaf, proof = opened(leaves, index)
    assert not commit.verify_proof(root, len(leaves), index, leaf, [*proof, bytes(32)])
    if proof:
        assert not commit.verify_proof(root, len(leaves), index, leaf, proof[:-1])
        assert not commit.verify_proof(root, len(leaves), index, leaf, proof[::-1] + proof)


def test_a_node_does_not_pass_for_a_leaf() -> None:
    hashes = [commit.leaf_hash(bytes([i])) for i in range(4)]
    root = commit.root_of_hashes(hashes)
    left = sha256(b"\x01" + hashes[0] + hashes[1]).digest()
    right = sha256(b"\x01" + hashes[2] + hashes[3]).digest()
    assert not commit.verify_proof(root, 2, 0, left, [right])
    assert commit.merkle_root([hashes[0] + hashes[1], hashes[2] + hashes[3]]) != root
    assert commit.root_of_hashes([left, right]) != root


def test_a_pair_cut_elsewhere_than_in_the_middle_is_refused() -> None:
    first, second = commit.leaf_hash(b"a"), commit.leaf_hash(b"b")
    root, pair = commit.root_of_hashes([first, second]), first + second
    assert commit.verify_proof(root, 2, 0, pair[:32], [pair[32:]])
    for cut in (0, 1, 31, 33, 64):
        assert not commit.verify_proof(root, 2, 0, pair[:cut], [pair[cut:]])


@given(leaf_lists, leaf_lists)
def test_different_leaves_have_different_roots(one: list[bytes], other: list[bytes]) -> None:
    assert (commit.merkle_root(one) == commit.merkle_root(other)) == (one == other)


def test_the_empty_tree_has_a_root_of_its_own_and_no_proofs() -> None:
    assert commit.merkle_root([]) == sha256(b"\x02" + bytes(4) + bytes(32)).digest()
    assert commit.merkle_root([]) != commit.merkle_root([b""])
    assert not commit.verify_proof(commit.merkle_root([]), 0, 0, bytes(32), [])
    with pytest.raises(IndexError):
        commit.merkle_proof([], 0)


@given(st.integers(1, 8), st.integers(0, 30), st.randoms(use_true_random=False))
def test_a_row_tree_is_the_tree_over_numbered_rows(row_bytes: int, rows: int, rng) -> None:
    data = rng.randbytes(row_bytes * rows)
    parts = [data[i : i + row_bytes] for i in range(0, len(data), row_bytes)]
    expected = commit.merkle_root(i.to_bytes(4, "big") + row for i, row in enumerate(parts))
    assert commit.rows_root(data, row_bytes) == expected
    growing, cut = commit.RowTree(), rng.randrange(rows + 1)
    growing.extend(memoryview(data)[: cut * row_bytes], row_bytes)
    for row in parts[cut:]:
        growing.extend(row, row_bytes)
    assert (growing.root(), len(growing)) == (expected, rows)


def test_rows_of_an_array_are_its_little_endian_bytes() -> None:
    rows = np.arange(12, dtype="<f4").reshape(3, 4)
    assert commit.rows_root(memoryview(rows), 16) == commit.rows_root(rows.tobytes(), 16)
    assert commit.tokens_root([1, 2, 70000]) == commit.rows_root(
        np.array([1, 2, 70000], dtype="<u4").tobytes(), 4
    )


def test_an_answer_s_root_binds_tokens_and_states_each_in_its_place() -> None:
    tokens, states = commit.tokens_root([1, 2]), commit.rows_root(bytes(range(16)), 8)
    root = commit.answer_root(tokens, states)
    assert root == sha256(b"\x04" + tokens + states).digest()
    others = [(states, tokens), (tokens, tokens), (commit.tokens_root([1, 3]), states)]
    assert root not in {commit.answer_root(*pair) for pair in others} | {tokens, states}
    for pair in ((tokens[:-1], states), (tokens, states + b"\0"), (b"", tokens + states)):
        with pytest.raises(ValueError, match="not 32 bytes"):
            commit.answer_root(*pair)


def test_half_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="not whole rows"):
        commit.rows_root(bytes(7), 4)
    with pytest.raises(ValueError, match="not whole rows"):
        commit.rows_root(bytes(8), 0)


@given(request_leaves, st.lists(hashes32, min_size=12, max_size=12))
def test_a_stage_s_output_root_is_the_next_stage_s_input_root(
    leaves: list[t.RequestLeaf], outputs: list[str]
) -> None:
    following = [
        t.RequestLeaf(leaf.request_index, leaf.out_root, out, leaf.tokens_in, leaf.tokens_out)
        for leaf, out in zip(leaves, outputs, strict=False)
    ]
    assert commit.receipt_roots(leaves)[1] == commit.receipt_roots(following)[0]


@given(request_leaves, st.data())
def test_a_request_opens_under_the_requests_root(
    leaves: list[t.RequestLeaf], data: st.DataObject
) -> None:
    root = commit.receipt_roots(leaves)[2]
    sums = [0, 0]
    for position, leaf in enumerate(leaves):
        hashed = commit.leaf_hash(commit.request_leaf_bytes(leaf))
        proof = commit.request_proof(leaves, position)
        assert commit.verify_proof(root, 2 * len(leaves), 2 * position, hashed, proof)
        sums = [sums[0] + leaf.tokens_in, sums[1] + leaf.tokens_out]
        beside = commit.leaf_hash(b"".join(n.to_bytes(4, "big") for n in sums))
        assert proof[0] == beside, "the sums up to it stand beside it"


@pytest.mark.parametrize("indices", [(1, 0), (0, 0), (0, 2, 1)])
def test_requests_out_of_order_or_twice_have_no_receipt(indices: tuple[int, ...]) -> None:
    leaves = [t.RequestLeaf(i, t.ZERO_HASH, t.ZERO_HASH, 1, 1) for i in indices]
    with pytest.raises(ValueError, match="strictly ascending"):
        commit.receipt_roots(leaves)


def test_a_prompt_s_leaf_hides_it_behind_32_bytes_of_salt() -> None:
    ids, salt = [5, 6, 7], b"s" * 32
    expected = sha256(salt + commit.tokens_root(ids)).digest()
    assert commit.prompt_leaf(3, salt, ids) == b"\x00\x00\x00\x03" + expected
    for wrong in (b"", b"s" * 31, b"s" * 33):
        with pytest.raises(ValueError, match="salt"):
            commit.prompt_leaf(3, wrong, ids)


@given(st.integers(1, 12), st.data())
def test_a_shard_root_covers_exactly_its_layers_and_ends(layers: int, data: st.DataObject) -> None:
    roots = [bytes([i]) * 32 for i in range(layers + 2)]
    start = data.draw(st.integers(0, layers - 1))
    end = data.draw(st.integers(start + 1, layers))
    root = commit.shard_root(roots, start, end)
    covered = {i + 1 for i in range(start, end)}
    covered |= {0} if start == 0 else set()
    covered |= {layers + 1} if end == layers else set()
    body = b"".join(roots[i] for i in sorted(covered))
    head = b"\x03" + start.to_bytes(2, "big") + end.to_bytes(2, "big")
    assert root == sha256(head + body).digest()
    for i in range(layers + 2):
        changed = [*roots[:i], b"\xff" * 32, *roots[i + 1 :]]
        assert (commit.shard_root(changed, start, end) != root) == (i in covered)


def test_shards_that_do_not_exist_have_no_root() -> None:
    roots = [bytes(32)] * 6
    for start, end in ((0, 0), (2, 1), (-1, 2), (0, 5), (4, 5)):
        with pytest.raises(ValueError, match="layers"):
            commit.shard_root(roots, start, end)
    with pytest.raises(ValueError, match="32 bytes"):
        commit.shard_root([bytes(32), bytes(31), bytes(33), bytes(32)], 0, 2)
