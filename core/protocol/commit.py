"""Which root commits to which bytes: SHA-256 trees (`docs/protocol.md` §3).

Twin of `contracts/src/libraries/ShaTree.sol`. SHA-256 and not Keccak, because the EVM has a
precompile for it and workers hash rows five to nine times faster with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import sha256

from core.protocol import hashing
from core.protocol.types import RequestLeaf, SamplingParams

_LEAF, _NODE, _ROOT, _SHARD, _ANSWER, _INNER = (bytes((tag,)) for tag in range(6))
_EMPTY_TOP = bytes(32)
PART_BYTES = 1024
_FIRST_NODES = 128
_LEAF_BEGUN = sha256(_LEAF)


class Half(IntEnum):
    """Which half of a last stage's `answer_root` a root is; NONE: a root that stands alone."""

    NONE = 0
    TOKENS = 1
    STATES = 2


def leaf_hash(leaf: bytes) -> bytes:
    """Hash of one leaf's bytes; tagged so that no leaf can pass for a node."""
    return sha256(_LEAF + leaf).digest()


def _parents(level: Sequence[bytes]) -> list[bytes]:
    pairs = [sha256(_NODE + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
    return [*pairs, level[-1]] if len(level) % 2 else pairs


def top_of_hashes(hashes: Sequence[bytes]) -> bytes:
    """The node over all leaf hashes, before their count is hashed in."""
    level = list(hashes)
    while len(level) > 1:
        level = _parents(level)
    return level[0] if level else _EMPTY_TOP


def root_of_hashes(hashes: Sequence[bytes]) -> bytes:
    """Root over leaf hashes. Their count is hashed in: trees of two sizes never share a root."""
    return sha256(_ROOT + len(hashes).to_bytes(4, "big") + top_of_hashes(hashes)).digest()


def row_hashes(rows: bytes | memoryview, row_bytes: int) -> list[bytes]:
    """Leaf hashes of consecutive rows held in one buffer."""
    view = memoryview(rows)
    count = len(view) // row_bytes
    return [row_hash(i, view[i * row_bytes : (i + 1) * row_bytes]) for i in range(count)]


def merkle_root(leaves: Iterable[bytes]) -> bytes:
    """Root over leaves given as bytes."""
    return root_of_hashes([leaf_hash(leaf) for leaf in leaves])


def merkle_proof(hashes: Sequence[bytes], index: int) -> list[bytes]:
    """Siblings of leaf `index` from the bottom up; none of a level where it is unpaired."""
    if not 0 <= index < len(hashes):
        raise IndexError(f"leaf {index} of {len(hashes)}")
    proof, level = [], list(hashes)
    while len(level) > 1:
        if index ^ 1 < len(level):
            proof.append(level[index ^ 1])
        level, index = _parents(level), index // 2
    return proof


def verify_proof(
    root: bytes, count: int, index: int, leaf: bytes, proof: Sequence[bytes], half: Half = Half.NONE
) -> bool:
    """Whether the leaf hash `leaf` is number `index` of `count` under `root`. Never raises.

    Of a `half` of an answer's root, the last sibling is the other half.
    """
    if not 0 <= index < count <= 2**32 - 1:
        return False
    if any(len(part) != 32 for part in (leaf, *proof)):
        return False  # two siblings cut elsewhere than in the middle would hash alike
    if half and not proof:
        return False
    beside, proof = (proof[-1], proof[:-1]) if half else (b"", proof)
    node, width, siblings = leaf, count, list(proof)
    while width > 1:
        if index ^ 1 < width:
            if not siblings:
                return False
            sibling = siblings.pop(0)
            pair = sibling + node if index % 2 else node + sibling
            node = sha256(_NODE + pair).digest()
        width, index = (width + 1) // 2, index // 2
    own = sha256(_ROOT + count.to_bytes(4, "big") + node).digest()
    return not siblings and whole_root(half, own, beside) == root


def part_hashes(row: bytes | memoryview) -> list[bytes]:
    """Leaf hashes of a row's parts of 1 KiB."""
    view, hashes = memoryview(row), []
    for at in range(0, len(view), PART_BYTES):
        hasher = _LEAF_BEGUN.copy()  # cheaper than a new one, and the part is not copied
        hasher.update(view[at : at + PART_BYTES])
        hashes.append(hasher.digest())
    return hashes


def row_hash(index: int, row: bytes | memoryview) -> bytes:
    """Leaf hash of row number `index` of a boundary or a tensor.

    A row of more than 1 KiB enters as the top of a tree over its parts, so that a dispute opens one
    number with one part.
    """
    if len(row) <= PART_BYTES:
        return sha256(b"".join((_LEAF, index.to_bytes(4, "big"), row))).digest()
    level = part_hashes(row)
    width = len(level)
    while width > 1:  # in place: every step of every stage comes by here
        for i in range(width // 2):
            level[i] = sha256(_NODE + level[2 * i] + level[2 * i + 1]).digest()
        if width % 2:
            level[width // 2] = level[width - 1]
        width = (width + 1) // 2
    return sha256(_LEAF + index.to_bytes(4, "big") + level[0]).digest()


class RowTree:
    """Growing commitment to the rows of one request at one boundary, with a root at any time.

    Many rows at once take a fraction of the time of one after the other.
    """

    __slots__ = ("_nodes", "_rows")

    def __init__(self) -> None:
        #: Nodes in the order in which they come to be: a row's leaf, then what it completes, from
        #: the bottom up. So the top of a full subtree is the last node before what follows it.
        #: There is room for more behind them.
        self._nodes = bytearray(32 * _FIRST_NODES)
        self._rows = 0

    def extend(self, rows: bytes | memoryview, row_bytes: int) -> None:
        """Add consecutive rows of `row_bytes` each: little-endian float32, or u32le token ids."""
        view = memoryview(rows)
        if row_bytes <= 0 or view.nbytes % row_bytes:
            raise ValueError(f"{view.nbytes} bytes are not whole rows of {row_bytes}")
        before, count = self._rows, view.nbytes // row_bytes
        if not count:
            return
        size = 32 * _nodes_of(before + count)
        if size > len(self._nodes):
            self._nodes += bytes(max(size, 2 * len(self._nodes)) - len(self._nodes))
        if hashing.in_c is not None:
            hashing.in_c.append(self._nodes, before, rows, row_bytes, count)
        else:
            view = view.cast("B")
            for row in range(count):
                self._hash_row(before + row, view[row * row_bytes : (row + 1) * row_bytes])
        self._rows += count

    def _hash_row(self, number: int, row: memoryview) -> None:
        nodes, at = self._nodes, 32 * _nodes_of(number)
        node = row_hash(number, row)
        nodes[at : at + 32] = node
        left = 32  # bytes from this node back to its left sibling
        while number & 1:  # it completes a subtree, and that one maybe another
            node = sha256(_NODE + nodes[at - left : at - left + 32] + node).digest()
            at += 32
            nodes[at : at + 32] = node
            number >>= 1
            left = 2 * left + 32

    def root(self, rows: int | None = None) -> bytes:
        """Root over the first `rows` rows, all when None; costs a few hashes."""
        rows = self._rows if rows is None else min(rows, self._rows)
        if hashing.in_c is not None:
            return hashing.in_c.root(self._nodes, rows)
        top, left = b"", rows
        while left:  # each full subtree, with what is smaller to its right
            at = 32 * _nodes_of(left)
            node = bytes(self._nodes[at - 32 : at])
            top = sha256(_NODE + node + top).digest() if top else node
            left &= left - 1
        return sha256(_ROOT + rows.to_bytes(4, "big") + (top or _EMPTY_TOP)).digest()

    def prefix(self, rows: int) -> RowTree:
        """A tree of its own over the first `rows` rows."""
        tree = RowTree()
        tree._rows = min(rows, self._rows)
        size = 32 * _nodes_of(tree._rows)
        tree._nodes = self._nodes[: max(size, len(tree._nodes))]
        return tree

    def __len__(self) -> int:
        return self._rows


def _nodes_of(rows: int) -> int:
    """How many nodes the full subtrees over `rows` rows have."""
    return 2 * rows - rows.bit_count()


def rows_root(rows: bytes | memoryview, row_bytes: int) -> bytes:
    """Root of consecutive rows held in one buffer."""
    tree = RowTree()
    tree.extend(rows, row_bytes)
    return tree.root()


def token_bytes(ids: Iterable[int]) -> bytes:
    """Token ids as consecutive u32le rows."""
    return b"".join(i.to_bytes(4, "little") for i in ids)


def tokens_root(ids: Iterable[int]) -> bytes:
    """Root of a sequence of token ids, one row each."""
    return rows_root(token_bytes(ids), 4)


def answer_root(tokens_root: bytes, states_root: bytes) -> bytes:
    """`outRoot` of a last stage: over its token ids, and the state rows they were drawn from.

    Raises ValueError unless both are 32 bytes.
    """
    if len(tokens_root) != 32 or len(states_root) != 32:
        raise ValueError("a root is not 32 bytes")
    return sha256(_ANSWER + tokens_root + states_root).digest()


def inner_root(roots: Sequence[bytes]) -> bytes:
    """What a stage signs of the rows at the boundaries inside it; 32 zero bytes without any.

    Raises ValueError unless each root is 32 bytes.
    """
    if any(len(root) != 32 for root in roots):
        raise ValueError("a root is not 32 bytes")
    return sha256(_INNER + b"".join(roots)).digest() if roots else bytes(32)


def whole_root(half: Half, root: bytes, beside: bytes) -> bytes:
    """What is signed of rows with this root: itself, or an `answer_root` with the other half."""
    match half:
        case Half.TOKENS:
            return answer_root(root, beside)
        case Half.STATES:
            return answer_root(beside, root)
    return root


def unhex(hex32: str) -> bytes:
    return bytes.fromhex(hex32.removeprefix("0x"))


def to_hex(data: bytes) -> str:
    return "0x" + data.hex()


def _u32(n: int) -> bytes:
    return n.to_bytes(4, "big")


def request_leaf_bytes(leaf: RequestLeaf) -> bytes:
    """Bytes of a leaf under `requestsRoot`."""
    roots = unhex(leaf.in_root) + unhex(leaf.out_root)
    counts = _u32(leaf.tokens_in) + _u32(leaf.tokens_out)
    return _u32(leaf.request_index) + roots + counts + unhex(leaf.inner_root)


def request_hashes(leaves: Sequence[RequestLeaf]) -> list[bytes]:
    """Leaf hashes under `requestsRoot`: each request's, then the sums of tokens up to it.

    Raises ValueError for sums that 32 bits do not hold.
    """
    hashes, tokens_in, tokens_out = [], 0, 0
    for leaf in leaves:
        tokens_in, tokens_out = tokens_in + leaf.tokens_in, tokens_out + leaf.tokens_out
        if max(tokens_in, tokens_out) >= 2**32:
            raise ValueError(f"{tokens_in} tokens in and {tokens_out} out are too many")
        sums = _u32(tokens_in) + _u32(tokens_out)
        hashes += [leaf_hash(request_leaf_bytes(leaf)), leaf_hash(sums)]
    return hashes


def request_proof(leaves: Sequence[RequestLeaf], position: int) -> list[bytes]:
    """Siblings under `requestsRoot` of the leaf of request number `position` of a receipt."""
    return merkle_proof(request_hashes(leaves), 2 * position)


def boundary_hashes(leaves: Sequence[RequestLeaf], roots: Sequence[str]) -> list[bytes]:
    """Leaf hashes under `inputRoot` or `outputRoot`: one of these roots for each request."""
    pairs = zip(leaves, roots, strict=True)
    return [leaf_hash(_u32(leaf.request_index) + unhex(root)) for leaf, root in pairs]


def receipt_roots(
    leaves: Sequence[RequestLeaf], answers: Sequence[str] | None = None
) -> tuple[bytes, bytes, bytes]:
    """(inputRoot, outputRoot, requestsRoot) of a receipt over these requests.

    `answers`: of a first stage, the last one's `out_root` of each request, which it holds as its
    input. Raises ValueError unless request indices strictly ascend, because a set of requests has
    one receipt; unless there is an answer for each; and for more tokens than 32 bits hold.
    """
    indices = [leaf.request_index for leaf in leaves]
    if indices != sorted(set(indices)):
        raise ValueError(f"request indices not strictly ascending: {indices}")
    return (
        root_of_hashes(
            boundary_hashes(
                leaves, [leaf.in_root for leaf in leaves] if answers is None else answers
            )
        ),
        root_of_hashes(boundary_hashes(leaves, [leaf.out_root for leaf in leaves])),
        root_of_hashes(request_hashes(leaves)),
    )


def prompt_leaf(index: int, salt: bytes, ids: Sequence[int]) -> bytes:
    """Leaf of `Order.inputRoot`; the 32-byte salt keeps short prompts from being guessed."""
    if len(salt) != 32:
        raise ValueError(f"salt has {len(salt)} bytes, not 32")
    return _u32(index) + sha256(salt + tokens_root(ids)).digest()


def sampling_leaf(index: int, params: SamplingParams) -> bytes:
    """Leaf of `Order.samplingRoot`."""
    return _u32(index) + params.canonical()


def shard_root(roots: Sequence[bytes], start: int, end: int) -> bytes:
    """Commitment to layers [start, end); `roots` are [embed, layer 0 … layer L−1, head]."""
    layers = len(roots) - 2
    if not 0 <= start < end <= layers:
        raise ValueError(f"layers [{start}, {end}) of {layers}")
    if any(len(root) != 32 for root in roots):
        raise ValueError("a root is not 32 bytes")
    first = 0 if start == 0 else start + 1
    last = layers + 2 if end == layers else end + 1
    head = _SHARD + start.to_bytes(2, "big") + end.to_bytes(2, "big")
    return sha256(head + b"".join(roots[first:last])).digest()
