"""How does one batch of requests' steps run through the engine, and what comes out for each?"""

from __future__ import annotations

import time
from asyncio import Future
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from core.batching.step import RequestStep
from core.protocol.errors import CheckFailed, HeadraceError

if TYPE_CHECKING:
    from core.engine.batch.batch import BatchEngine
    from core.engine.batch.compat import CompatEngine
    from core.engine.batch.pieces import RequestPiece
    from core.engine.model.blocks import Draw, ModelShard
    from core.engine.sampling.sampling import Sampler, TokenChoice
    from core.protocol.types import LayerRange

    Engine = BatchEngine | CompatEngine


class DrawnToken(NamedTuple):
    """A token that a last stage drew, and its state row: what the last layer gave there."""

    choice: TokenChoice
    state: bytes


class StepWork(RequestStep):
    """A request's step and its future. Without `draw` a last stage gives nothing."""

    __slots__ = (
        "as_decodes",
        "data",
        "draw",
        "future",
        "guesses",
        "has_waited",
        "inside",
        "links",
        "queued_s",
        "trace",
    )

    def __init__(
        self,
        request: Hashable,
        first: int,
        end: int,
        job: Hashable,
        data: Any,
        future: Future[Any],
        *,
        draw: Sampler | None = None,
        trace: list[int] | None = None,
        as_decodes: bool = False,
        guesses: Sequence[int] | None = None,
        guessed: int = 0,
        layers: LayerRange | None = None,
        inside: list[bytes] | None = None,
    ) -> None:
        """`data` is token ids or the bytes of float32 rows.

        `trace` is lengthened in place once the step has run, and `inside` by the float32 rows at
        each boundary inside the request's layers. What is drawn comes out as a
        `DrawnToken`. With `guesses` each row but the first stands for one, and a list of draws
        comes out: one, and one more for each guess that fits the draw before.
        """
        super().__init__(request, first, end, job, layers, guessed, leads=bool(trace))
        self.data, self.future, self.draw, self.trace = data, future, draw, trace
        self.as_decodes, self.guesses, self.inside = as_decodes, guesses, inside
        self.has_waited, self.links = False, tuple[bytes, ...]()  # of `miner.compute.prefixes`
        self.queued_s = time.perf_counter()


Outcome = tuple[StepWork, Any]
"""A step and its result; an exception is what went wrong."""


@dataclass(frozen=True)
class Stepped:
    """What running a batch came to."""

    outcomes: list[Outcome]
    deferred: list[StepWork]  # there were too few pages; they may run later
    ran: list[StepWork]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(work.tokens for work in self.ran)


def run_batch(
    engine: Engine, works: Sequence[StepWork], group: int = 0, following: int | None = None
) -> Stepped:
    """One pass over the works that can run, the first ones where pages are short.

    All are of one `group` of the engine's; `following` is whose pages it may fetch meanwhile. A
    fault of one request is its own outcome; whatever breaks the pass is the outcome of all that
    were in it.
    """
    from core.engine.memory.paged_kv import KvShort

    started = time.perf_counter()
    outcomes: list[Outcome] = []
    works, deferred = _once_each(works)
    ready = _checked(engine, works, outcomes)
    while ready:
        inner: list[list[Any]] = []
        try:
            outs = engine.step(
                [piece for _, piece in ready],
                microbatch=group,
                following=following,
                checked=True,
                states=True,
                draw=_drawing([work for work, _ in ready]),
                inside=inner,
            )
            for (work, _), parts in zip(ready, inner, strict=True):
                if work.inside is not None:
                    work.inside += map(as_rows, parts)
            outcomes += zip([work for work, _ in ready], _results(ready, outs), strict=True)
            break
        except KvShort:
            work, _ = ready.pop()
            if ready:
                deferred.insert(0, work)
            else:
                error = CheckFailed("the request stops", "this stage's memory is full")
                outcomes.append((work, error))
        except Exception as error:  # a bug, or a library's: these requests fail, the thread goes on
            outcomes += [(work, error) for work, _ in ready]
            ready = []
    ran = [work for work, _ in ready]
    return Stepped(outcomes, deferred, ran, time.perf_counter() - started)


def enters_as_ids(shard: ModelShard, layers: LayerRange | None) -> bool:
    """Whether a request over these layers (all of the shard's) brings token ids."""
    return shard.is_first and (layers is None or layers.start == shard.layers.start)


def leaves_as_logits(shard: ModelShard, layers: LayerRange | None) -> bool:
    """Whether a request over these layers (all of the shard's) leaves at the model's end."""
    return shard.is_last and (layers is None or layers.end == shard.layers.end)


def _once_each(works: Sequence[StepWork]) -> tuple[list[StepWork], list[StepWork]]:
    """The first step of every request, and the others, which must wait for it."""
    seen: set[Hashable] = set()
    first, later = [], []
    for work in works:
        (later if work.request in seen else first).append(work)
        seen.add(work.request)
    return first, later


def _checked(
    engine: Engine, works: Sequence[StepWork], outcomes: list[Outcome]
) -> list[tuple[StepWork, RequestPiece]]:
    """Works with their pieces; those that no step can run become outcomes."""
    from core.engine.batch.pieces import ALL, LAST, NONE, RequestPiece

    shard = engine.shard
    entering = [work for work in works if enters_as_ids(shard, work.layers)]
    passing = [work for work in works if not enters_as_ids(shard, work.layers)]
    tensors: dict[int, Any] = {}
    are_good = True
    for some, read in ((entering, _ids), (passing, _activations)):
        if some:
            found, good = read(engine, some)
            tensors |= {id(work): x for work, x in zip(some, found, strict=True)}
            are_good = are_good and good
    ready = []
    for work in works:
        x = tensors[id(work)]
        logits = LAST if work.draw else NONE if leaves_as_logits(shard, work.layers) else ALL
        if work.guesses is not None:
            logits = ALL
        piece = RequestPiece(work.request, x, work.first, logits, work.as_decodes, work.links)
        try:
            engine.check(piece, values=not are_good)
        except HeadraceError as error:
            outcomes.append((work, error))
        except ValueError as error:
            outcomes.append((work, CheckFailed("activations are refused", str(error))))
        else:
            ready.append((work, piece))
    return ready


def _ids(engine: Engine, works: Sequence[StepWork]) -> tuple[list[Any], bool]:
    import torch

    every = torch.tensor([i for work in works for i in work.data], dtype=torch.int64)
    least, most = torch.aminmax(every)
    return list(every.split([work.tokens for work in works])), bool(
        least >= 0 and most < engine.shard.vocab
    )


def _activations(engine: Engine, works: Sequence[StepWork]) -> tuple[list[Any], bool]:
    """[n, D] of each work, views of one buffer, and whether all of it is fit to compute on."""
    import numpy as np
    import torch

    from core.engine.model.blocks import MAX_ACTIVATION

    hidden = engine.shard.hidden
    every = np.concatenate([np.frombuffer(work.data, "<f4") for work in works]).reshape(-1, hidden)
    are_good = bool(np.abs(every).max() <= MAX_ACTIVATION)  # of NaN: False
    return list(torch.from_numpy(every).split([work.tokens for work in works])), are_good


def as_rows(out: Any) -> bytes:
    """A step's activations as they travel."""
    import torch

    rows: bytes = out.to(torch.float32).cpu().contiguous().numpy().tobytes()
    return rows


def _drawing(works: Sequence[StepWork]) -> Draw:
    """Draws the tokens of these works, in order: one each, or one for each row with guesses."""
    from core.engine.sampling.sampling import sample_batch

    samplers: list[Sampler] = []
    for work in works:
        if work.draw and work.guesses is not None:
            samplers += _along(work.draw, work.guesses[: work.tokens - 1])
        elif work.draw:
            samplers.append(work.draw)
    left = iter(samplers)
    return lambda logits: sample_batch(logits, list(islice(left, len(logits))))


def _along(sampler: Sampler, guesses: Sequence[int]) -> list[Sampler]:
    """A sampler for the next token, and one for each after the guesses before it."""
    found = [sampler]
    for guess in guesses:
        found.append(found[-1].fork([guess]))
    return found


def _results(ran: Sequence[tuple[StepWork, RequestPiece]], outs: Sequence[Any]) -> list[Any]:
    from core.engine.model.blocks import Final

    results: list[Any] = []
    for (work, _), out in zip(ran, outs, strict=True):
        if work.draw and work.guesses is not None:
            drawn = [_drawn(*each) for each in zip(out.logits, out.rows, strict=True)]
            results.append(_fitting(drawn, work.guesses))
        elif work.draw:
            results.append(_drawn(out.logits[-1], out.rows[-1]))
        elif isinstance(out, Final):
            results.append(b"")  # the last stage says nothing of a prompt
        else:
            results.append(as_rows(out))
    return results


def _drawn(choice: Any, state: Any) -> Any:
    """A draw with its state; the error where it failed."""
    return choice if isinstance(choice, Exception) else DrawnToken(choice, as_rows(state))


def _fitting(drawn: Sequence[Any], guesses: Sequence[int]) -> Any:
    """Draws as far as they were guessed, and the one after; the error where the first failed."""
    found: list[Any] = []
    for i, draw in enumerate(drawn):
        if isinstance(draw, Exception):
            return found or draw
        found.append(draw)
        if i == len(guesses) or draw.choice.token != guesses[i]:
            break
    return found
