"""Which jobs are audited here? Real models cut in three, prompts, and what a pipeline signs."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.engine.models import NAMES, model_folder
from core.dispute.judging.numerics import BF16, FP32, NumericsProfile, profile_of
from core.dispute.play.model import TraceModel
from core.dispute.play.program import ModelProgram, model_program
from core.dispute.play.tables import corpus_texts
from core.dispute.trace.families import FP32_TOLERANCES, SIGMA
from core.engine.batch.whole import prepare
from core.engine.model.attention import attention_by
from core.engine.model.blocks import ModelShard, output_of
from core.engine.sampling.sampling import Sampler, sample_batch
from core.engine.weights.load_shard import load_shard
from core.engine.weights.tokenizer import Tokenizer
from core.protocol.types import LayerRange, SamplingParams

#: First layer of the second and of the third stage; the second is as deep as a checkpoint of the
#: profiles' tables.
CUTS = {"smollm": (12, 18, 30), "gemma": (6, 12, 18), "tiny": (2, 4, 6)}
SAMPLED = SamplingParams(temperature_micro=800_000, max_new_tokens=2**10, seed=11, ignore_eos=True)
FORMS = {"fp32": "float32", "bf16": "bfloat16"}
#: What a stage does with the rows of one call; state of a request, if any, is its own.
Work = Callable[[Tensor], Tensor]
#: Makes the work of one request.
Worker = Callable[[ModelShard, int], Work]


def honest(shard: ModelShard, request: int) -> Work:
    """Rows as they are, through the shard."""
    cache = shard.new_cache()
    return lambda x: shard.forward(x, cache)


@dataclass(frozen=True)
class Served:
    """One request as signed: ids in, rows at each inner boundary, tokens and state rows out."""

    request: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    rows: tuple[Any, ...]  # float32 [T, D] after each stage but the last
    states: Any = None  # float32 [len(tokens), D], where they are looked at

    @property
    def fed(self) -> Tensor:
        return torch.tensor(self.prompt + self.tokens[:-1])

    def entering(self, stage: int) -> Tensor:
        """What stage `stage` was given, as an auditor takes it."""
        return self.fed if stage == 0 else torch.from_numpy(self.rows[stage - 1]).double()


class Town:
    """One model in one numerics profile, cut in three.

    Shards are loaded when they are asked for.
    """

    def __init__(self, model: str, profile: str, cuts: Sequence[int] = ()) -> None:
        self.model = model
        self.name, self.folder = folder_of(model)
        self.form = FORMS[profile]
        bounds = (0, *(cuts or CUTS[model]))
        self.spans = [LayerRange(a, b) for a, b in pairwise(bounds)]
        self._exact: dict[LayerRange, ModelShard] = {}
        self._auditing: dict[LayerRange, ModelShard] = {}

    @property
    def audited(self) -> Sequence[int]:
        """Stages that the matrices judge: all, of the larger model only the second one."""
        return range(len(self.spans)) if self.model == "smollm" else (1,)

    @cached_property
    def profile(self) -> NumericsProfile:
        """What an auditor holds machines to, by the registered program or the published table."""
        if self.form == FORMS["bf16"]:
            return BF16
        return profile_of(self.ours.program)

    @cached_property
    def ours(self) -> ModelProgram:
        """The operator program with its tables, as a float32 network registers it."""
        return model_program(self.folder, FP32_TOLERANCES)

    @cached_property
    def traced(self) -> TraceModel:
        """The model's tensors as traces read them."""
        return self.ours.trace_model(self.folder)

    @cached_property
    def sigma(self) -> Any:
        """Sizes of channels at each boundary."""
        return self.ours.tables[SIGMA].astype(np.float64)

    def load(self, span: LayerRange) -> ModelShard:
        return load_shard(self.folder, span, numerics=self.form)

    @cached_property
    def shards(self) -> list[ModelShard]:
        """The honest pipeline."""
        return [self.load(span) for span in self.spans]

    def exact(self, span: LayerRange) -> ModelShard:
        """The float64 reference of machines of this profile."""
        if span not in self._exact:
            self._exact[span] = load_shard(self.folder, span, numerics=self.form, reference=True)
        return self._exact[span]

    def auditing(self, span: LayerRange) -> ModelShard:
        """The same reference as an auditor with much to judge runs it."""
        if span not in self._auditing:
            shard = load_shard(self.folder, span, numerics=self.form, reference=True)
            self._auditing[span] = prepare(shard, self.folder)
        return self._auditing[span]

    def prompts(self, count: int, tokens: int) -> list[tuple[int, ...]]:
        """`count` prompts of exactly `tokens` tokens: texts of the corpus, one after the other."""
        tokenizer, texts = Tokenizer(self.folder), corpus_texts()
        found = []
        for first in range(count):
            ids: list[int] = []
            for i in range(len(texts)):
                ids += tokenizer.encode(texts[(first + i) % len(texts)])
                if len(ids) >= tokens:
                    break
            found.append(tuple(ids[:tokens]))
        return found

    def serve(
        self,
        request: int,
        prompt: Sequence[int],
        new_tokens: int,
        workers: Sequence[Worker] = (honest, honest, honest),
        shards: Sequence[ModelShard] = (),
        choose: Callable[[int, int], int] = lambda step, token: token,
    ) -> Served:
        """Prefill and decode through three stages, each doing its work.

        `choose` may put another token in a drawn one's place.
        """
        held = list(shards) or self.shards
        works = [worker(shard, request) for worker, shard in zip(workers, held, strict=True)]
        sampler = Sampler(SAMPLED, request, prompt, frozenset())
        rows: list[list[Any]] = [[] for _ in works[1:]]
        fed, tokens, states = torch.tensor(list(prompt)), list[int](), list[Any]()
        for step in range(new_tokens):
            x = fed
            with output_of(held[-1].decoder_layers[-1]) as left:
                for stage, work in enumerate(works):
                    x = work(x)
                    if stage < len(works) - 1:
                        rows[stage].append(x.float().numpy())
            states.append(left[-1].reshape(-1, held[-1].hidden)[-1:].float().numpy())
            (choice,) = sample_batch(x[-1:], [sampler])
            token = choose(step, int(choice.token))
            sampler.take(token)
            tokens.append(token)
            fed = torch.tensor([token])
        sent = tuple(np.concatenate(r) for r in rows)
        return Served(request, tuple(prompt), tuple(tokens), sent, np.concatenate(states))

    @cached_property
    def cheap(self) -> list[ModelShard]:
        """The same pipeline with every layer's matrices in four bits."""
        from benchmarks.trust.lies import int4, spoil

        made = [self.load(span) for span in self.spans]
        for shard in made:
            spoil(shard, int4, len(shard.layers))
        return made

    def close(self) -> None:
        """Let the weights go."""
        for made in ("shards", "cheap", "traced"):
            self.__dict__.pop(made, None)
        self._exact.clear()
        self._auditing.clear()
        gc.collect()


@contextmanager
def town(model: str, profile: str, cuts: Sequence[int] = ()) -> Iterator[Town]:
    """A town that is torn down afterwards; `cuts` as in `CUTS`."""
    made = Town(model, profile, cuts)
    try:
        yield made
    finally:
        made.close()


def folder_of(model: str) -> tuple[str, Path]:
    """A model's title and folder; `tiny` is a random one, for the shortest form of a part."""
    if model == "tiny":
        return "random Llama 6 × 64", Path(_tiny().name) / "tiny"
    return NAMES[model], model_folder(model)


@cache
def _tiny() -> tempfile.TemporaryDirectory[str]:
    from devnet.models.tiny_models import write_tiny_model

    folder = tempfile.TemporaryDirectory()
    write_tiny_model(Path(folder.name) / "tiny", "llama", layers=CUTS["tiny"][-1])
    return folder


def quick_columns() -> list[tuple[str, str]]:
    """`columns` of the shortest form."""
    return [("tiny", "fp32")]


def columns() -> list[tuple[str, str]]:
    """(model, profile) of the table, of the models that are installed here."""
    wanted = (("smollm", "fp32"), ("smollm", "bf16"), ("gemma", "fp32"))
    return [(model, profile) for model, profile in wanted if model_folder(model).exists()]


def attention(shard: ModelShard, kind: str) -> Worker:
    """Honest work with one of the library's attention kernels: `eager` or `sdpa` (fused)."""

    def worker(_: ModelShard, request: int) -> Work:
        cache = shard.new_cache()

        def work(x: Tensor) -> Tensor:
            with attention_by(shard.model.config, kind):
                return shard.forward(x, cache)

        return work

    return worker


__all__ = [
    "BF16",
    "CUTS",
    "FORMS",
    "FP32",
    "SAMPLED",
    "Path",
    "Served",
    "Town",
    "Work",
    "Worker",
    "attention",
    "columns",
    "honest",
    "town",
]
