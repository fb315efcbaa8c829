"""What does each side say of a token's verdict, given all logits? The best that either can do."""

from __future__ import annotations

from collections.abc import Sequence

from core.dispute.trace.answer import to_ids, to_tokens
from core.dispute.trace.derive import Choice, How, delta_of
from core.dispute.trace.layout import Place, TraceLayout


def point_of_token(
    layout: TraceLayout, choice: Choice, logits: Sequence[float], tokens: bytes = b""
) -> tuple[Place, bytes]:
    """Where the last stage points if all logits are right, and with which list.

    The list is what speaks most for the token that it served, empty if there is none. `tokens` is
    the list that the accuser of a token outside top-k posted.
    """
    verdict, tau = layout.verdicts[0], choice.temperature_micro
    if choice.how == How.OUTSIDE_TOP_K:
        ids = to_ids(tokens)
        least = min(range(len(ids)), key=lambda i: logits[ids[i]], default=0)
        return verdict._replace(item=least), b""
    if choice.how == How.OUTSIDE_MIN_P or tau == 0:
        return verdict, b""
    if choice.min_p_micro:
        verdict = verdict._replace(item=max(range(len(logits)), key=logits.__getitem__))
    if not choice.top_k:
        return verdict, b""
    delta = delta_of(layout.program.delta_micro, tau)
    near = [
        i
        for i, logit in enumerate(logits)
        if i != choice.preferred and (logits[choice.preferred] - logit) * 10**12 < delta * tau
    ]
    best = sorted(sorted(near, key=lambda i: -logits[i])[: choice.top_k])
    return verdict, to_tokens(best) if len(best) == choice.top_k else b""


def token_behind(tokens: bytes, logits: Sequence[float]) -> int:
    """Which of the accused's list its accuser names: the one that is furthest behind.

    Any, if the list loses by itself.
    """
    ids = to_ids(tokens)
    if not ids or max(ids) >= len(logits):
        return 0
    return min(range(len(ids)), key=lambda i: logits[ids[i]])
