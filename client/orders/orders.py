"""What does the requester sign: commitments to prompts, and an order with every cap it will pay?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.protocol import commit, signing
from core.protocol.errors import ContextTooLong, UsageError
from core.protocol.types import (
    ZERO_HASH,
    ModelSpec,
    Order,
    RequestOpening,
    SamplingParams,
    Stage,
    Terms,
)


@dataclass(frozen=True)
class Prompt:
    """One request of a batch as token ids, with the salt that hides it in the commitment."""

    custom_id: str
    ids: tuple[int, ...]
    sampling: SamplingParams
    salt: bytes

    def __repr__(self) -> str:  # prompts are private: keep them out of logs and tracebacks
        return f"Prompt({self.custom_id!r}, {len(self.ids)} tokens)"


@dataclass(frozen=True)
class OrderProof:
    """What proves to a stage that this prompt and sampling belong to the order."""

    prompt_proof: list[str]
    sampling_proof: list[str]


@dataclass(frozen=True)
class PromptBatch:
    """Prompts in the order of their request index, with the roots an order commits to."""

    prompts: tuple[Prompt, ...]
    input_root: bytes
    sampling_root: bytes
    _inputs: tuple[bytes, ...]
    _samplings: tuple[bytes, ...]

    @classmethod
    def of(cls, prompts: Sequence[Prompt]) -> PromptBatch:
        """Commit to these prompts. Raises ValueError for none."""
        if not prompts:
            raise ValueError("a batch needs at least one prompt")
        leaves = [_leaves(index, prompt) for index, prompt in enumerate(prompts)]
        inputs, samplings = zip(*leaves, strict=True)
        roots = commit.root_of_hashes(inputs), commit.root_of_hashes(samplings)
        return cls(tuple(prompts), *roots, inputs, samplings)

    def opening(self, index: int) -> OrderProof:
        """The proof for one of the prompts."""
        return OrderProof(
            [commit.to_hex(h) for h in commit.merkle_proof(self._inputs, index)],
            [commit.to_hex(h) for h in commit.merkle_proof(self._samplings, index)],
        )


@dataclass(frozen=True)
class OrderTerms:
    """What the requester insists on beside the prompts; all of it is signed."""

    price_in: int  # nano base units per token per layer unit
    price_out: int
    matcher: str
    matcher_fee_bps: int
    opening_fee: int  # base units
    min_stake: int
    deadline: int  # chain time, seconds
    window: int  # seconds
    auditor: str
    arbitrator: str
    demands: Terms | None = None  # whom to use and whom not: bound by the order's hash of it


def make_prompt(
    custom_id: str,
    ids: Sequence[int],
    sampling: SamplingParams,
    context_tokens: int,
    random_bytes: Callable[[int], bytes],
) -> Prompt:
    """A prompt that fits the model. Raises ContextTooLong, or UsageError for one without tokens."""
    if not ids:
        raise UsageError("the prompt is empty", "it has no tokens")
    if len(ids) + sampling.max_new_tokens > context_tokens:
        most = sampling.max_new_tokens
        raise ContextTooLong(
            prompt_tokens=len(ids), max_new_tokens=most, context_tokens=context_tokens
        )
    return Prompt(custom_id, tuple(ids), sampling, random_bytes(32))


@dataclass(frozen=True)
class Allowance:
    """What an order allows in all."""

    requests: int
    tokens_in: int
    tokens_out: int

    @classmethod
    def of(cls, prompts: Sequence[Prompt]) -> Allowance:
        """As much as these prompts take at most."""
        most = sum(prompt.sampling.max_new_tokens for prompt in prompts)
        return cls(len(prompts), sum(len(prompt.ids) for prompt in prompts), most)


def make_order(
    batch: PromptBatch,
    model_id: str,
    model: ModelSpec,
    terms: OrderTerms,
    requester: str,
    nonce: int,
) -> Order:
    """The order for this batch under these terms, unsigned."""
    roots = commit.to_hex(batch.input_root), commit.to_hex(batch.sampling_root)
    return _order(Allowance.of(batch.prompts), roots, model_id, model, terms, requester, nonce)


def make_open_order(
    allowance: Allowance,
    model_id: str,
    model: ModelSpec,
    terms: OrderTerms,
    requester: str,
    nonce: int,
) -> Order:
    """An order that fixes no prompts: a signature opens each request. Unsigned."""
    return _order(allowance, (ZERO_HASH, ZERO_HASH), model_id, model, terms, requester, nonce)


def _order(
    allowance: Allowance,
    roots: tuple[str, str],
    model_id: str,
    model: ModelSpec,
    terms: OrderTerms,
    requester: str,
    nonce: int,
) -> Order:
    return Order(
        requester=requester,
        model_id=model_id,
        input_root=roots[0],
        sampling_root=roots[1],
        requests=allowance.requests,
        max_tokens_in=allowance.tokens_in,
        max_tokens_out=allowance.tokens_out,
        price_in=terms.price_in,
        price_out=terms.price_out,
        matcher=terms.matcher,
        matcher_fee_bps=terms.matcher_fee_bps,
        opening_fee=terms.opening_fee,
        min_stake=terms.min_stake,
        deadline=terms.deadline,
        window=terms.window,
        auditor=terms.auditor,
        arbitrator=terms.arbitrator,
        numerics_profile=model.numerics_profile,
        terms_hash=signing.terms_hash(terms.demands),
        nonce=nonce,
    )


def opening_of(order_hash: str, index: int, prompt: Prompt) -> RequestOpening:
    """What opens request `index` of an open order with this prompt, unsigned."""
    leaf, sampling = _leaves(index, prompt)
    return RequestOpening(order_hash, index, commit.to_hex(leaf), commit.to_hex(sampling))


def _leaves(index: int, prompt: Prompt) -> tuple[bytes, bytes]:
    """Hashes of what commits to a request's prompt and to its sampling parameters."""
    return (
        commit.leaf_hash(commit.prompt_leaf(index, prompt.salt, prompt.ids)),
        commit.leaf_hash(commit.sampling_leaf(index, prompt.sampling)),
    )


def short_address(address: str) -> str:
    return f"{address[:6]}…{address[-4:]}"


def route_text(plan: Sequence[Stage]) -> str:
    """`0x12…ab [0-13] → 0x34…cd [14-29]`."""
    return " → ".join(f"{short_address(s.operator)} [{s.layers}]" for s in plan)
