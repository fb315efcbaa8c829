"""Does a step whose shape was captured give what the same step gives launched?

There need not be a graphics processor: what is captured is a function over fixed memory, and
running it again on that memory is what a graph does. A CUDA graph cannot look at a number on its
way; neither can the functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from core.engine.batch import graphs
from core.engine.batch.batch import BatchEngine
from core.engine.batch.graphs import ASKED, MOST_ROWS, DecodeGraphs, Made, Replay
from core.engine.batch.pieces import RequestPiece
from core.engine.memory.sizing import Offload
from core.engine.model import attention
from core.engine.model.blocks import ModelShard
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange
from tests.core.engine.architectures import write_model
from tests.core.engine.serving import CLOSE, feed, ids_of, make_stages, off, run_step

LAYERS = 4
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2")
_LOOKS = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "equal",
}


class Blind(TorchDispatchMode):
    """Refuses what CUDA refuses while it captures: to wait for a number."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func._schema.name.removeprefix("aten::") in _LOOKS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        return func(*args, **(kwargs or {}))


def capture(run: Callable[[], Made]) -> tuple[Made, Replay]:
    with Blind():
        made = run()

    def replay() -> None:
        for part, again in zip(made, run(), strict=True):
            part.copy_(again)

    return made, replay


def step_both(
    plain: list[Any], captured: list[Any], pieces: list[Any], **options: Any
) -> list[Tensor]:
    expected, got = (run_step(stages, pieces, **options) for stages in (plain, captured))
    for one, other in zip(got, expected, strict=True):
        assert not len(one) or off(one, other) < CLOSE
    return got


@pytest.mark.parametrize("cut", [(0, LAYERS), (0, 1, LAYERS)], ids=str)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_captured_steps_answer_as_launched_ones(
    architecture: str, cut: tuple[int, ...], tiny: Callable
) -> None:
    """Requests of unequal lengths, far beyond the windows of eight, join, grow over page ends and
    leave.
    """
    folder = tiny(architecture, layers=LAYERS)
    plain, captured = make_stages(folder, cut), make_stages(folder, cut, capture=capture)
    lengths = {0: 90, 1: 23, 2: 1, 3: 30, 4: 64}
    for stages in (plain, captured):
        for request, length in lengths.items():
            for stage in stages:
                stage.open(request)
            feed(stages, request, ids_of(request, length))
    for step in range(24):
        here = [r for r in lengths if not (r == 1 and step > 8) and not (r == 3 and step < 6)]
        pieces = [(r, ids_of(100 * r + step, 1), lengths[r]) for r in here]
        step_both(plain, captured, pieces)
        for r in here:
            lengths[r] += 1
    for stage in captured:
        assert stage.graphs.replays >= 15 and not stage.graphs.refusal
        for pool in stage.kv.store.pools:
            assert not pool.keys[: pool.shape.kv_heads].any(), "nothing is written where nobody is"
    # Cut back and continued, and with a prompt beside them.
    lengths[0] -= 5
    more = [
        (0, ids_of(7, 1), lengths[0]),
        (4, ids_of(8, 1), lengths[4]),
        (2, ids_of(9, 20), lengths[2]),
    ]
    step_both(plain, captured, more)
    for engine in (*plain, *captured):
        engine.close()


def test_guesses_are_captured_too_and_steps_without_logits(tiny: Callable) -> None:
    folder = tiny("gemma3", layers=LAYERS)
    plain, captured = (
        make_stages(folder, (0, LAYERS), **options) for options in ({}, {"capture": capture})
    )
    for stages in (plain, captured):
        stages[0].open("r")
        feed(stages, "r", ids_of(1, 40))
    at = 40
    for step in range(8):
        step_both(plain, captured, [("r", ids_of(step, 5), at)], as_decodes=True)
        at += 3  # two of five guesses are taken back
    before = captured[0].graphs.replays
    assert before
    for step in range(4):
        (none,) = step_both(
            plain, captured, [("r", ids_of(step, 5), at)], logits="none", as_decodes=True
        )
        (last,) = step_both(
            plain, captured, [("r", ids_of(step, 5), at)], logits="last", as_decodes=True
        )
        assert (len(none), len(last)) == (0, 1)
    assert captured[0].graphs.replays > before


def test_requests_over_part_of_the_layers_are_launched(tiny: Callable) -> None:
    (engine,) = make_stages(tiny("llama", layers=LAYERS), (0, LAYERS), capture=capture)
    engine.open("part", LayerRange(0, 2))
    for at in range(2 * ASKED):
        engine.step([RequestPiece("part", ids_of(at, 1), at)])
    assert (len(engine.graphs), engine.graphs.replays) == (0, 0)


@pytest.mark.parametrize(
    "name", ["mixtral", "gpt_oss", "deepseek_v3", "phi", "opt", "cohere2", "gpt_neox"]
)
def test_other_kinds_of_decoders_are_captured(name: str, tmp_path: Path) -> None:
    """Experts, sinks, keys and values of unlike widths, learnt positions."""
    assert captured_of(write_model(tmp_path, name)).replays


class Looks(torch.nn.Module):
    """A layer's part that decides by a number."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if float(x.sum()) < 1e9 else x


def test_whatever_looks_at_numbers_is_launched_for_ever(tiny: Callable) -> None:
    def hook(shard: ModelShard) -> None:
        mlp = shard.decoder_layers[1].mlp
        mlp.down_proj = Looks(mlp.down_proj)

    made = captured_of(tiny("llama", layers=LAYERS), hook)
    assert "not permitted" in made.refusal
    assert (len(made), made.replays) == (0, 0)


def captured_of(
    folder: Path, hook: Callable[[ModelShard], None] = lambda shard: None
) -> DecodeGraphs:
    """After ten steps that were right."""
    engines = []
    for options in ({}, {"capture": capture}):
        shard = load_shard(folder, LayerRange(0, LAYERS))
        hook(shard)
        engines.append([BatchEngine(shard, kv_bytes=2**22, **options)])
    for stages in engines:
        stages[0].open("r")
        feed(stages, "r", ids_of(3, 20, 64))
    for at in range(20, 30):
        step_both(*engines, [("r", ids_of(at, 1, 64), at)])
    made = engines[1][0].graphs
    assert made is not None
    return made


@pytest.mark.parametrize("part", [0, 1], ids=["rows", "logits"])
def test_a_captured_step_that_is_off_is_not_used(part: int, tiny: Callable) -> None:
    def wrong(run: Callable[[], Made]) -> tuple[Made, Replay]:
        made, replay = capture(run)
        return made, lambda: (replay(), made[part].mul_(1.01))[0]

    folder = tiny("llama", layers=LAYERS)
    plain, captured = (
        make_stages(folder, (0, LAYERS), **options) for options in ({}, {"capture": wrong})
    )
    for stages in (plain, captured):
        stages[0].open("r")
    for at in range(2 * ASKED):
        step_both(plain, captured, [("r", ids_of(at, 1), at)])
    assert "off by" in captured[0].graphs.refusal and not captured[0].graphs.replays


def test_only_so_many_shapes_are_kept(tiny: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    (engine,) = make_stages(tiny("llama", layers=LAYERS), (0, LAYERS), capture=capture)
    engine.open("r")
    for at in range(70):
        engine.step([RequestPiece("r", ids_of(at, 1), at)])
        assert len(engine.graphs) <= 2
    assert engine.graphs.replays == 70 - 4 * (ASKED - 1), "1, 2, 4 and 8 pages"


def test_long_steps_and_pages_that_move_are_launched(tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS)
    (swapping,) = make_stages(
        folder, (0, LAYERS), capture=capture, offload=Offload(2, 0.5), prefix_share=0
    )
    assert swapping.graphs is None
    swapping.close()
    (engine,) = make_stages(folder, (0, LAYERS), capture=capture, kv_bytes=2**23)
    names = range(MOST_ROWS + 1)
    for name in names:
        engine.open(name)
    for at in range(ASKED + 1):
        engine.step([RequestPiece(name, ids_of(name, 1), at) for name in names])
    assert not engine.graphs.replays


def test_fused_attention_is_the_same_attention() -> None:
    made = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made)

    options = {"scaling": 0.3}
    query, keys, values = some(3, 4, 16), some(3, 2, 32, 16), some(3, 2, 32, 8)
    mask = torch.zeros(6, 1, 32)
    mask[:, :, 20:] = float("-inf")
    grouped = query.reshape(6, 2, 16), keys.reshape(6, 32, 16), values.reshape(6, 32, 8)
    assert (
        off(
            attention.fused(*grouped, mask, options).reshape(3, 4, 8),
            attention.decode_rows(query, keys, values, mask, options),
        )
        < 1e-6
    )
    rows, keys, values = some(4, 150, 16), some(2, 190, 16), some(2, 190, 8)
    assert (
        off(
            attention.fused_chunk(rows, keys, values, options),
            attention.chunk_rows(rows, keys, values, 0, 40, 0, options),
        )
        < 1e-6
    )
