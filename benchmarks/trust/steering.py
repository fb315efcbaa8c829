"""How far can a machine bend an answer that obeys every bound, with the gradient in its hands?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.table import Row
from benchmarks.trust.judging import Finding, Judge
from benchmarks.trust.town import Served, Town, honest, town
from core.dispute.judging.numerics import TokenMargins, judge_rows, reexecute
from core.engine.batch.whole import head_logits
from core.engine.model.attention import attending
from core.engine.model.blocks import ModelShard, output_of
from core.protocol.types import SamplingParams

MODEL = "smollm"
PROMPTS, PROMPT_TOKENS, RANKS, TURNS = 2, 80, (1, 19), 1
BF16_PROMPT, BF16_TOKENS, BF16_EVERY = 64, 64, 8
QUICK = {
    "MODEL": "tiny",
    "PROMPTS": 1,
    "PROMPT_TOKENS": 24,
    "BF16_PROMPT": 16,
    "BF16_TOKENS": 8,
    "BF16_EVERY": 4,
}
FP32_NATS, TRACE_NATS = 0.1, 1e-7
_GREEDY = SamplingParams(max_new_tokens=2**10, ignore_eos=True)
_U, _TRANSCENDENTAL = 2.0**-50, 2.0**-40


def rows() -> list[Row]:
    """float32, the float64 trace, bfloat16."""
    torch.set_num_threads(1)
    with town(MODEL, "fp32") as here:
        found = [_fp32(here), _trace(here)]
    with town(MODEL, "bf16") as here:
        return [*found, _bf16(here)]


# --- float32: every tolerance used up, in the worst direction ---


def _fp32(here: Town) -> Row:
    worst = moved = 0.0
    for prompt in here.prompts(PROMPTS, PROMPT_TOKENS):
        first = reexecute(here.exact(here.spans[0]), torch.tensor(prompt))
        second = reexecute(here.exact(here.spans[1]), first)
        true = _logits(here, 2, second)
        order = true.argsort(descending=True)
        for rank in RANKS:
            target = int(order[rank])
            # Both stages lie together, each up to its own tolerance: the second from what the first
            # has sent.
            bent = _bend(here, 0, first, int(order[0]), target)
            sent = reexecute(here.exact(here.spans[1]), bent)
            steered = _logits(here, 2, _bend(here, 1, sent, int(order[0]), target))
            worst = max(worst, _divergence(true, steered))
            gap = float(true[order[0]] - true[target]) - float(steered[order[0]] - steered[target])
            moved = max(moved, gap)
    return Row(
        f"{here.name}, fp32: two stages steer together, both inside every tolerance",
        f"≤ {FP32_NATS} nat (KL)",
        f"KL {worst:.1e} nat, margin moved {moved:.3f} nat "
        f"({PROMPTS} prompts, ranks {', '.join(str(r + 1) for r in RANKS)})",
        "–",
        "0",
        worst <= FP32_NATS and moved > 0,
    )


def _bend(here: Town, stage: int, honest_rows: Tensor, top: int, target: int) -> Tensor:
    """Rows [T, D] after `stage` that judge clean and favour `target` as far as they may."""
    span = here.spans[stage]
    sigma = torch.from_numpy(here.sigma[span.end])
    limit = here.profile.tolerance(len(span), len(honest_rows))
    budget = limit * float((honest_rows / sigma).norm())
    bent = honest_rows
    for _ in range(TURNS):
        direction = _gradient(here, stage + 1, bent, top, target) * sigma
        step = budget * sigma * direction / direction.norm()
        share = 1.0
        while judge_rows(
            here.profile,
            len(span),
            (honest_rows + share * step).numpy(),
            honest_rows.numpy(),
            sigma.numpy(),
        ).at_fault:
            share *= 0.98
        bent = honest_rows + share * step
    return bent


def _gradient(here: Town, stage: int, entering: Tensor, top: int, target: int) -> Tensor:
    """Of logit[target] − logit[top] at the last position, by what enters `stage`."""
    x = entering.clone().requires_grad_(True)
    logits = _logits(here, stage, x)
    (found,) = torch.autograd.grad(logits[target] - logits[top], x)
    return found


def _logits(here: Town, stage: int, x: Tensor) -> Tensor:
    """Logits [V] of the last position from what enters `stage`, with a gradient if `x` has one."""
    with torch.set_grad_enabled(x.requires_grad):
        for span in here.spans[stage:]:
            x = _through(here.exact(span), x)
    return x


def _through(shard: ModelShard, x: Tensor) -> Tensor:
    given = {"input_ids" if shard.is_first else "inputs_embeds": x.unsqueeze(0), "use_cache": False}
    with shard.precision():
        if shard.is_last:
            logits: Tensor = shard.model(**given, logits_to_keep=1).logits[0, -1]
            return logits
        hidden: Tensor = shard.model.base_model(**given).last_hidden_state[0]
        return hidden


def _divergence(true: Tensor, steered: Tensor) -> float:
    p, q = true.log_softmax(-1), steered.log_softmax(-1)
    return float((p.exp() * (p - q)).sum())


# --- a float64 trace: every leaf bound used up ---


@dataclass
class _Leaves:
    """Zeros beside each value of a trace, to take gradients by, and the bound of each value."""

    added: list[Tensor] = field(default_factory=list)
    bounds: list[Tensor] = field(default_factory=list)

    def bent(self, value: Tensor, bound: Tensor) -> Tensor:
        nothing = torch.zeros_like(value, requires_grad=True)
        self.added.append(nothing)
        self.bounds.append(bound.detach())
        return value + nothing

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        """Scores, probabilities and sums, each with its bound.

        Twice the rotation's for queries and keys.
        """
        query, key = (self.bent(t, 6 * _U * t.abs()) for t in (query, key))
        share = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(share, 1) for t in (key, value))
        scale, positions = options["scaling"], query.shape[2]
        sizes = query.abs() @ key.abs().transpose(2, 3) * scale
        scores = self.bent(query @ key.transpose(2, 3) * scale, (query.shape[3] + 2) * _U * sizes)
        mask = torch.ones(positions, positions, dtype=torch.bool).tril()
        p = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        p = self.bent(p, (2 * _TRANSCENDENTAL + (positions + 4) * _U) * p)
        mixed = self.bent(p @ value, positions * _U * (p @ value.abs()))
        return mixed.transpose(1, 2)

    @property
    def shift(self) -> float:
        """What all of them do together, first order, once a gradient was taken."""
        return math.fsum(
            float((e.grad.abs() * b).sum())
            for e, b in zip(self.added, self.bounds, strict=True)
            if e.grad is not None
        )


def _trace(here: Town) -> Row:
    """A dispute's trace is of one stage; what follows is computed exactly from where it ends."""
    worst, together, values = 0.0, 0.0, 0
    for prompt in here.prompts(PROMPTS, PROMPT_TOKENS):
        order = _logits(here, 0, torch.tensor(prompt)).argsort(descending=True)
        stages = [_Leaves() for _ in here.spans]
        exact = [here.exact(span) for span in here.spans]
        handles = [h for s, leaves in zip(exact, stages, strict=True) for h in _hook(s, leaves)]
        try:
            x = torch.tensor(prompt)
            with torch.enable_grad():
                for shard, leaves in zip(exact, stages, strict=True):
                    with attending(shard.model.config, leaves):
                        x = _through(shard, x)
                (x[order[RANKS[1]]] - x[order[0]]).backward()
        finally:
            for handle in handles:
                handle.remove()
        shifts = [leaves.shift for leaves in stages]
        worst, together = max(worst, *shifts), max(together, sum(shifts))
        values = sum(e.numel() for leaves in stages for e in leaves.added)
    return Row(
        f"{here.name}: a float64 trace of one stage, each value bent by its bound to one token",
        f"≤ {TRACE_NATS:.0e} nat",
        f"{worst:.1e} nat of margin ({together:.1e} if all three stages lied so; "
        f"{values:,} values bent, {PROMPTS} prompts)",
        "–",
        "0: in a canonical trace nothing can be bent",
        0 < worst <= TRACE_NATS,
    )


def _hook(shard: ModelShard, leaves: _Leaves) -> list[Any]:
    """Every operator of the owned layers adds its bound to what it makes."""

    def linear(module: nn.Linear, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        with torch.no_grad():
            terms = args[0].abs() @ module.weight.abs().T
        return leaves.bent(out, (module.in_features + 1) * _U * terms)

    def norm(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return leaves.bent(out, (args[0].shape[-1] / 2 + 20) * _U * out.abs())

    def curved(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return leaves.bent(out, _TRANSCENDENTAL * (args[0].abs() + out.abs()))

    def product(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (leaves.bent(args[0], _U * args[0].abs()),)

    def added(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return leaves.bent(out, 4 * _U * out.abs())

    handles: list[Any] = []
    for layer in shard.decoder_layers:
        handles.append(layer.register_forward_hook(added))
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                handles.append(module.register_forward_hook(linear))
                if name.endswith("down_proj"):
                    handles.append(module.register_forward_pre_hook(product))
            elif name.endswith("norm"):
                handles.append(module.register_forward_hook(norm))
            elif name.endswith("act_fn"):
                handles.append(module.register_forward_hook(curved))
    return handles


# --- bfloat16: the tolerance leaves room to steer, and the end-to-end check sees it ---


def _bf16(here: Town) -> Row:
    (prompt,) = here.prompts(1, BF16_PROMPT)
    served, tried, won = _steered(here, prompt)
    judge = Judge(here)
    stages = [judge.stage(served, stage, student=False).finding for stage in (0, 1)]
    last = here.exact(here.spans[-1])
    tokens = _margins(served, head_logits(last, torch.from_numpy(served.states).double()))
    replay, honest_replay = (
        _margins(of, _from_ids(here, of)).replayed(here.profile)
        for of in (served, _honest_answer(here, prompt))
    )
    caught = [f"stage {i}" for i, f in enumerate(stages) if f == Finding.SLASHED]
    caught += ["the last stage's tokens"] if tokens.verdict(here.profile).at_fault else []
    by_itself = (
        f"at fault by itself: {', '.join(caught)}" if caught else "each stage clean by itself"
    )
    at_fault = ", at fault" if honest_replay.at_fault else ""
    return Row(
        f"{here.name}, bf16: the middle stage steers every {BF16_EVERY}th token inside its T",
        "found end to end, voided",
        f"{won} of {tried} steered; {by_itself}; "
        f"replayed from the ids: {'; '.join(replay.reasons) or 'nothing'} "
        f"(honest: at most {honest_replay.ratio:.2f} nat{at_fault})",
        "–",
        "every steered job",
        not caught and won > 0 and replay.at_fault and not honest_replay.at_fault,
    )


def _honest_answer(here: Town, prompt: Sequence[int]) -> Served:
    return _generate(here, prompt, lambda step, rows, new: new)[0]


def _steered(here: Town, prompt: Sequence[int]) -> tuple[Served, int, int]:
    """The answer where the middle stage bends every n-th row towards the second best token."""
    last, sigma = here.exact(here.spans[2]), torch.from_numpy(here.sigma[here.spans[1].end])
    profile, span = here.profile, here.spans[1]
    spent = [0.0]
    tried = [0]

    def bend(step: int, rows: Tensor, new: Tensor) -> Tensor:
        if step % BF16_EVERY != BF16_EVERY - 1:
            return new
        tried[0] += 1
        x = torch.cat([rows, new]).double().requires_grad_(True)
        with torch.enable_grad():
            logits = _through(last, x)
            first, second = (int(i) for i in logits.topk(2).indices)
            (gradient,) = torch.autograd.grad(logits[second] - logits[first], x)
        direction = gradient[-1] * sigma
        # The window's budget is shared among the tokens that are still to be steered; what is
        # honest noise stays free.
        size = float((x.detach()[-profile.window_rows :] / sigma).norm())
        tolerance = 0.8 * profile.tolerance(len(span), profile.window_rows) * size
        left = BF16_TOKENS // BF16_EVERY - tried[0] + 1
        share = math.sqrt(max(0.0, tolerance**2 - spent[0]) / left)
        share = min(share, 0.8 * profile.single_row * float((new[-1].double() / sigma).norm()))
        spent[0] += share**2
        return (new[-1:].double() + share * sigma * direction / direction.norm()).to(new.dtype)

    served, honest_tokens = _generate(here, prompt, bend)
    won = sum(a != b for a, b in zip(served.tokens, honest_tokens, strict=True))
    return served, tried[0], won


def _generate(here: Town, prompt: Sequence[int], bend: Any) -> tuple[Served, list[int]]:
    """Greedy decoding; also the token that each step would have given unbent."""
    works = [honest(shard, 0) for shard in here.shards]
    probe = here.shards[2]
    rows: list[list[Tensor]] = [[], []]
    states: list[Tensor] = []
    tokens: list[int] = []
    unbent: list[int] = []
    fed = torch.tensor(list(prompt))
    for step in range(BF16_TOKENS):
        first = works[0](fed)
        second = works[1](first)
        before = torch.cat(rows[1]) if rows[1] else second[:0]
        sent = bend(step, before, second)
        with output_of(probe.decoder_layers[-1]) as left:
            logits = works[2](sent)[-1]
        states.append(left[-1].reshape(-1, probe.hidden)[-1:])
        if torch.equal(sent, second):
            unbent.append(int(logits.argmax()))
        else:
            unbent.append(
                int(probe.forward(torch.cat([before, second]), probe.new_cache())[-1].argmax())
            )
        rows[0].append(first)
        rows[1].append(sent)
        tokens.append(int(logits.argmax()))
        fed = torch.tensor(tokens[-1:])
    *made, ends = (torch.cat(r).float().numpy() for r in (*rows, states))
    return Served(0, tuple(prompt), tuple(tokens), tuple(made), ends), unbent


def _from_ids(here: Town, served: Served) -> Any:
    """The reference's logits of every token, [T, V]."""
    x, first = served.fed, len(served.prompt) - 1
    for span in here.spans:
        wanted = range(first, first + len(served.tokens)) if span == here.spans[-1] else None
        x = reexecute(here.exact(span), x, logit_rows=wanted)
    return x


def _margins(served: Served, logits: Any) -> TokenMargins:
    found = TokenMargins(served.tokens, _GREEDY, 0, prompt=served.prompt)
    found(logits)
    return found
