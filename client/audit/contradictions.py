"""Which of a stage's own signed words contradict each other, or the order?

Each finding is one call of the contract Evidence: it convicts without bond, answer or judge. The
functions here are the twins of its calls and read only what the accused signed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client.audit.evidence import (
    AuditCase,
    EvidenceCollector,
    PromptOpening,
    ShownRows,
    Testimony,
    is_told_by,
    tokens_in,
)
from core.protocol import commit, wire
from core.protocol.errors import HeadraceError
from core.protocol.receipts import equivocation, told
from core.protocol.signing import Domain
from core.protocol.types import ZERO_HASH, RequestLeaf, SignedReceipt

_NO_ID: tuple[int, bytes, list[bytes]] = (0, bytes(4), [])
_NO_SUMS: tuple[int, int, list[bytes]] = (0, 0, [])
#: What `Evidence.rows` calls the sides.
_SIDES = {"in": 0, "out": 1, "tokens": 2, "states": 3}


@dataclass(frozen=True)
class Contradiction:
    """`Evidence.call(order, plan, *arguments)` convicts the stage."""

    call: str
    stage: int
    request: int
    why: str
    arguments: tuple[Any, ...]


def two_results(receipts: Sequence[SignedReceipt]) -> Contradiction | None:
    """Two different leaves of one request: what it sent, by its word, and what it signed for."""
    found = equivocation(receipts)
    if found is None:
        return None
    one, other = found
    return _found("equivocation", *other, "two results are signed", told(*one), told(*other))


def counts(case: AuditCase, signed: SignedReceipt) -> Contradiction | None:
    """Requests that do not ascend or were not ordered, or totals that are not the leaves'."""
    receipt, leaves = signed.receipt, signed.leaves
    sums = [0, 0]
    for position, leaf in enumerate(leaves):
        before = leaves[position - 1] if position else leaf
        sums = [sums[0] + leaf.tokens_in, sums[1] + leaf.tokens_out]
        totals = [receipt.tokens_in, receipt.tokens_out]
        if position and leaf.request_index <= before.request_index:
            why = f"request {leaf.request_index} is counted after {before.request_index}"
        elif leaf.request_index >= case.order.requests:
            why = f"request {leaf.request_index} was not ordered"
        elif position + 1 == len(leaves) and sums != totals:
            why = f"its requests have {sums} tokens in and out, it says {totals}"
        else:
            continue
        at = position - 1 if position else 0
        return _found(
            "counts",
            signed,
            position,
            why,
            told(signed, position),
            _sums(signed, position),
            before,
            commit.request_proof(leaves, at),
            _sums(signed, at) if position else _NO_SUMS,
        )
    return None


def roots(
    case: AuditCase, signed: SignedReceipt, sent: Sequence[str], *, is_output: bool
) -> Contradiction | None:
    """A receipt whose boundary is a neighbour's roots, `sent`, where its own leaf says otherwise.

    A first stage's input is the answer, which only a stage that is also the last one signs.
    """
    receipt, leaves = signed.receipt, signed.leaves
    if len(sent) != len(leaves) or (not is_output and not receipt.stage and len(case.plan) > 1):
        return None
    hashes = commit.boundary_hashes(leaves, sent)
    tree = receipt.output_root if is_output else receipt.input_root
    if commit.to_hex(commit.root_of_hashes(hashes)) != tree:
        return None
    for position, leaf in enumerate(leaves):
        own = leaf.out_root if is_output or not receipt.stage else leaf.in_root
        if own != sent[position]:
            side = "output" if is_output else "input"
            proof = commit.merkle_proof(hashes, position)
            shown = told(signed, position), is_output, hashes[position], proof
            why = f"its {side} has another root in the receipt"
            return _found("roots", signed, position, why, *shown)
    return None


def rows(
    case: AuditCase, signed: SignedReceipt, position: int, side: wire.Side, shown: ShownRows
) -> Contradiction | None:
    """Another number of rows under a signed root than its counts make."""
    leaf, is_last = signed.leaves[position], signed.receipt.stage + 1 == len(case.plan)
    is_half = is_last and side != "in"
    hashes = commit.row_hashes(shown.data, shown.row_bytes)
    if len(hashes) == (leaf.tokens_out if is_half else leaf.tokens_in + leaf.tokens_out - 1):
        return None
    named = "tokens" if is_half and side == "out" else side
    beside = commit.unhex(shown.beside or ZERO_HASH)
    args = _SIDES[named], len(hashes), commit.top_of_hashes(hashes), beside
    why = f"{len(hashes)} rows are under its root ({side})"
    return _found("rows", signed, position, why, told(signed, position), *args)


def prompt(
    signed: SignedReceipt, position: int, ordered: PromptOpening, fed: Sequence[int]
) -> Contradiction | None:
    """A first stage that was fed other ids than were ordered, or counted another number."""
    if ordered.shown is None or signed.receipt.stage:
        return None
    proof = [commit.unhex(sibling) for sibling in ordered.shown.prompt_proof]
    beside = commit.unhex(ordered.shown.salt)
    ids = ordered.prompt_ids
    leaf = signed.leaves[position]
    return _fed_otherwise("prompt", signed, position, (ids, beside, proof), fed, 0, leaf.tokens_in)


def fed(
    signed: SignedReceipt,
    position: int,
    answer: Sequence[int],
    states_root: str,
    fed: Sequence[int],
) -> Contradiction | None:
    """A first stage that was fed other ids than the answer that it signed as its input."""
    leaf, states = signed.leaves[position], commit.unhex(states_root)
    said = commit.to_hex(commit.answer_root(commit.tokens_root(answer), states))
    if signed.receipt.stage or len(signed.answers) <= position or not answer:
        return None
    if signed.answers[position] != said:
        return None
    hashes = commit.boundary_hashes(signed.leaves, signed.answers)
    if commit.to_hex(commit.root_of_hashes(hashes)) != signed.receipt.input_root:
        return None
    ids = answer, states, commit.merkle_proof(hashes, position)
    return _fed_otherwise("fed", signed, position, ids, fed, leaf.tokens_in, leaf.tokens_out)


def of_receipts(
    domain: Domain, case: AuditCase, receipts: Sequence[SignedReceipt]
) -> list[Contradiction]:
    """What receipts alone convict a job's stages of, one finding a stage at most.

    Receipts that no stage of the job signed count for nothing.
    """
    stages = range(len(case.plan))
    told = {n: [one for one in receipts if is_told_by(domain, case, n, one)] for n in stages}
    firsts = (next(_of_words(case, stage, told, ()), None) for stage in stages)
    return [one for one in firsts if one is not None]


async def find(
    evidence: EvidenceCollector,
    own: Sequence[SignedReceipt] = (),
    asked: Mapping[int, PromptOpening] = {},
) -> tuple[list[Contradiction], list[str]]:
    """What convicts each stage, one finding a stage at most, and what could not be looked at.

    `own` are receipts that we hold, and `asked` prompts by request, beside what the stages show.
    """
    case, shown, gaps = evidence.case, dict[int, Testimony](), list[str]()
    stages = range(len(case.plan))
    for stage in stages:
        try:
            shown[stage] = await evidence.told(stage)
        except HeadraceError as error:
            gaps.append(f"stage {stage}: {error.what}")
            shown[stage] = Testimony([], [])
    receipts = {
        stage: [*shown[stage].receipts, *(s for s in own if evidence.is_told_by(stage, s))]
        for stage in stages
    }
    found: dict[int, Contradiction] = {}
    for stage in stages:
        after = (stage + 1) % len(stages)
        words = [] if len(stages) == 1 else shown[after].words
        worded = [evidence.by_words(stage, [word], [word.word.request_index]) for word in words]
        by_words = [signed for signed in worded if signed is not None]
        for one in _of_words(case, stage, receipts, by_words):
            found.setdefault(stage, one)
    for stage in stages:
        if stage not in found:
            one_of_rows = await _of_rows(evidence, stage, receipts, asked, gaps)
            if one_of_rows is not None:
                found[stage] = one_of_rows
    return [found[stage] for stage in sorted(found)], gaps


def _of_words(
    case: AuditCase,
    stage: int,
    receipts: dict[int, list[SignedReceipt]],
    by_words: Sequence[SignedReceipt],
) -> Iterator[Contradiction]:
    """What signatures alone show of a stage; a word that it gave is a receipt over one request."""
    own = receipts[stage]
    found = [two_results([*own, *by_words])]
    for signed in own:
        found.append(counts(case, signed))
        for is_output, beside in ((False, stage - 1), (True, (stage + 1) % len(case.plan))):
            for other in receipts[beside % len(case.plan)]:
                sent = [one.in_root if is_output else one.out_root for one in other.leaves]
                found.append(roots(case, signed, sent, is_output=is_output))
    yield from (one for one in found if one is not None)


async def _of_rows(
    evidence: EvidenceCollector,
    stage: int,
    receipts: dict[int, list[SignedReceipt]],
    asked: Mapping[int, PromptOpening],
    gaps: list[str],
) -> Contradiction | None:
    """What ids show: a first stage's inputs against order and answer, a last one's number."""
    last = len(evidence.case.plan) - 1
    seen: set[RequestLeaf] = set()
    for signed in receipts[stage] if stage in (0, last) else ():
        for position, leaf in enumerate(signed.leaves):
            if leaf in seen:
                continue
            seen.add(leaf)
            try:
                found = await _of_request(evidence, signed, position, receipts[last], asked)
            except HeadraceError as error:
                gaps.append(f"stage {stage}, request {leaf.request_index}: {error.what}")
                continue
            if found is not None:
                return found
    return None


async def _of_request(
    evidence: EvidenceCollector,
    signed: SignedReceipt,
    position: int,
    answers: Sequence[SignedReceipt],
    asked: Mapping[int, PromptOpening],
) -> Contradiction | None:
    case, leaf, stage = evidence.case, signed.leaves[position], signed.receipt.stage
    last = len(case.plan) - 1
    if stage == last:
        drawn = await evidence.shown_rows(last, "out", leaf, 4)
        if found := rows(case, signed, position, "out", drawn):
            return found
    if stage:
        return None
    shown = await evidence.shown_rows(0, "in", leaf, 4)
    if found := rows(case, signed, position, "in", shown):
        return found
    entered = tokens_in(shown.data)
    if not case.order.is_open:
        ordered = asked.get(leaf.request_index) or await evidence.opening(leaf.request_index)
        if found := prompt(signed, position, ordered, entered):
            return found
    said = signed.answers[position] if position < len(signed.answers) else ZERO_HASH
    for other in answers:
        for at, of in enumerate(other.leaves):
            if of.request_index != leaf.request_index or of.out_root != said:
                continue
            drawn = await evidence.shown_rows(last, "out", of, 4)
            return fed(signed, position, tokens_in(drawn.data), other.states[at], entered)
    return None


# --- what the calls take ---


def _sums(signed: SignedReceipt, position: int) -> tuple[int, int, list[bytes]]:
    upto = signed.leaves[: position + 1]
    proof = commit.merkle_proof(commit.request_hashes(signed.leaves), 2 * position + 1)
    return sum(one.tokens_in for one in upto), sum(one.tokens_out for one in upto), proof


def _id(ids: Sequence[int], at: int) -> tuple[int, bytes, list[bytes]]:
    data = commit.token_bytes(ids)
    return at, data[4 * at : 4 * at + 4], commit.merkle_proof(commit.row_hashes(data, 4), at)


def _fed_otherwise(
    call: str,
    signed: SignedReceipt,
    position: int,
    expected: tuple[Sequence[int], bytes, list[bytes]],
    entered: Sequence[int],
    start: int,
    due: int,
) -> Contradiction | None:
    ids, beside, proof = expected
    tree = commit.tokens_root(ids), len(ids), beside, proof
    shown = told(signed, position)
    if len(ids) != due:
        why = f"{len(ids)} ids are due, it counts {due}"
        return _found(call, signed, position, why, shown, tree, _id(ids, 0), _NO_ID)
    for at, (wanted, got) in enumerate(zip(ids, entered[start:], strict=False)):
        if wanted != got:
            why = f"id {got} was fed at {start + at}, {wanted} is due"
            pair = _id(ids, at), _id(entered, start + at)
            return _found(call, signed, position, why, shown, tree, *pair)
    return None


def _found(
    call: str, signed: SignedReceipt, position: int, why: str, *arguments: Any
) -> Contradiction:
    leaf = signed.leaves[position]
    return Contradiction(call, signed.receipt.stage, leaf.request_index, why, arguments)
