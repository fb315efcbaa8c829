"""Does a request that is run at once, as auditors run it, come to what the library makes of it?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from core.dispute.judging.numerics import FP32, TokenMargins, reexecute
from core.engine.batch.whole import attend_whole, head_logits, prepare, run_whole
from core.engine.kernels import head
from core.engine.native import native
from core.engine.native.native import NoKernels, kernels
from core.engine.weights.load_shard import load_shard
from core.protocol.errors import ContextTooLong
from core.protocol.types import LayerRange, SamplingParams
from tests.core.engine.draws import judge_tokens
from tests.core.engine.serving import ids_of

LAYERS = 4
CLOSE = {torch.float32: 2e-5, torch.float64: 1e-12}
DTYPES = [torch.float32, torch.float64]


def _off(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert got.shape == expected.shape and got.dtype == expected.dtype
    return float((got - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "architecture", ["llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2", "gpt_oss", "mixtral"]
)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_whole_request_has_the_librarys_numbers(
    architecture: str,
    dtype: torch.dtype,
    compiled: bool,
    tiny: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through every stage of a chain, in both precisions, with our C and without.

    Windows are shorter than the request.
    """
    if not compiled:
        monkeypatch.setattr(native, "_made_once", lambda bits: "left out")
    folder = tiny(architecture, layers=LAYERS)
    x = ids_of(1, 90)
    for span in (LayerRange(0, 1), LayerRange(1, 3), LayerRange(3, LAYERS)):
        plain = load_shard(folder, span, dtype=dtype)
        ready = prepare(load_shard(folder, span, dtype=dtype))
        expected = plain.forward(x, plain.new_cache())
        assert _off(run_whole(ready, x), expected) < CLOSE[dtype]
        rows = torch.tensor([3, 64, 64, 89])
        assert _off(run_whole(ready, x, rows), expected[rows]) < CLOSE[dtype]
        assert _off(run_whole(plain, x, rows), expected[rows]) < CLOSE[dtype]
        assert _off(ready.forward(x, ready.new_cache()), expected) < CLOSE[dtype]
        x = expected


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_what_a_stage_would_refuse_is_refused(architecture: str, tiny: Callable) -> None:
    folder = tiny(architecture, layers=2, context=40)
    ready = prepare(load_shard(folder, LayerRange(1, 2)))
    with pytest.raises(ContextTooLong):
        run_whole(ready, torch.zeros(41, ready.hidden))
    with pytest.raises(ValueError, match="NaN"):
        run_whole(ready, torch.full((3, ready.hidden), torch.nan))
    with pytest.raises(ValueError, match="activations"):
        run_whole(ready, torch.zeros(3, ready.hidden + 1))


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_float64_answer_is_the_same_as_without(architecture: str, tiny: Callable) -> None:
    """Also where rows are not sound: from there on there is no answer, and before it nothing
    moves.
    """
    folder = tiny(architecture, layers=LAYERS)
    span = LayerRange(1, LAYERS)
    plain, ready = (load_shard(folder, span, dtype=torch.float64) for _ in range(2))
    prepare(ready)
    x = torch.randn(70, plain.hidden, generator=torch.Generator().manual_seed(1)).double()
    assert _off(reexecute(ready, x), reexecute(plain, x)) < 1e-13
    x[50, 3] = torch.nan
    some = reexecute(ready, x, logit_rows=[60, 2, 49, 50])
    assert some[0].isnan().all() and some[3].isnan().all()
    assert _off(some[1:3], reexecute(plain, x)[[2, 49]]) < 1e-13


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("is_sound", [True, False])
def test_an_answer_is_judged_without_all_its_logits_at_once(
    is_ready: bool, is_sound: bool, tiny: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same margins to the bit; a row that is no number ends what is judged."""
    shard = load_shard(tiny("llama", layers=LAYERS), LayerRange(1, LAYERS), dtype=torch.float64)
    if is_ready:
        prepare(shard)
    monkeypatch.setattr(head, "REUSED_BYTES", 2 * 8 * shard.vocab)
    monkeypatch.setattr(head, "SPACE_BYTES", 4 * 8 * shard.vocab)
    x = torch.randn(70, shard.hidden, generator=torch.Generator().manual_seed(1)).double()
    if not is_sound:
        x[62, 3] = torch.nan
    wanted, tokens = range(40, 70), [int(i) for i in ids_of(7, 30)]
    sampling = SamplingParams(temperature_micro=700_000, frequency_penalty_micro=300_000)
    whole = reexecute(shard, x, logit_rows=wanted, states=True)
    margins, calls = TokenMargins(tokens, sampling, 0, prompt=[1, 2]), list[int]()

    def draw(logits: torch.Tensor) -> list[float]:
        calls.append(len(logits))
        return margins(logits)

    found = reexecute(shard, x, logit_rows=wanted, draw=draw)
    judged = 30 if is_sound else 22
    assert (sum(calls), max(calls)) == (judged, 4 if is_ready else judged)
    assert torch.equal(found.rows, whole.rows) or not is_sound
    assert margins.are_all_finite == is_sound and len(margins.margins) == judged
    assert found.logits == margins.margins
    expected = judge_tokens(FP32, whole.logits, tokens, sampling, 0, prompt=[1, 2])
    assert margins.verdict(FP32) == expected
    with pytest.raises(ValueError, match="rows of logits"):
        margins(whole.logits)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3", "gpt2", "gpt_oss"])
@pytest.mark.parametrize("is_ready", [True, False])
def test_logits_of_served_rows_are_theirs_and_states_are_our_own(
    architecture: str, is_ready: bool, tiny: Callable
) -> None:
    """What norm and head make of rows that another stage signed, at the positions asked for; what
    the layers make of the inputs is judged beside it, and nothing of the served rows is in it.
    """
    folder = tiny(architecture, layers=LAYERS)
    shard = load_shard(folder, LayerRange(1, LAYERS), dtype=torch.float64)
    made = torch.Generator().manual_seed(1)
    x, other = torch.randn(2, 30, shard.hidden, generator=made).double()
    wanted = [4, 21, 29]
    own = reexecute(shard, x, logit_rows=wanted, states=True)
    foreign = reexecute(shard, other, logit_rows=wanted, states=True)
    if is_ready:
        prepare(shard)
    got = reexecute(shard, x, logit_rows=wanted, states=True, served=foreign.rows)
    assert _off(got.rows, own.rows) < 1e-12
    assert _off(got.logits, foreign.logits) < 1e-12
    assert _off(got.logits, own.logits) > 1e-3
    assert _off(head_logits(shard, foreign.rows), foreign.logits) < 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 1, 7, 33, 500])
@pytest.mark.parametrize(
    ("rows", "heads", "group", "widths"),
    [(1, 1, 1, (8, 8)), (48, 2, 3, (64, 64)), (49, 1, 2, (20, 36)), (200, 2, 1, (16, 7))],
)
def test_rows_attend_to_those_before_them(
    rows: int, heads: int, group: int, widths: tuple[int, int], window: int, dtype: torch.dtype
) -> None:
    """Of any number of rows, heads and widths, wherever they lie."""
    _needs_kernels()
    made = torch.Generator().manual_seed(rows)
    d, e = widths
    query = torch.randn(rows, heads * group, d, generator=made).to(dtype).transpose(0, 1)
    key = torch.randn(heads, rows, d, generator=made).to(dtype)
    value = torch.randn(e, heads, rows, generator=made).to(dtype).permute(1, 2, 0)
    at = torch.arange(rows)
    seen = at[None] <= at[:, None]
    if window:
        seen &= at[None] > at[:, None] - window
    scores = query @ key.repeat_interleave(group, 0).transpose(1, 2) * 0.3
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
    expected = (weights @ value.repeat_interleave(group, 0)).transpose(0, 1)
    got = attend_whole(query, key, value, window, 0.3)
    assert _off(got, expected) < CLOSE[dtype]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(attend_whole(query, key, value, window, 0.3), got)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_do_not_overflow(dtype: torch.dtype) -> None:
    _needs_kernels()
    query, key = torch.full((1, 30, 8), 1e4).to(dtype), torch.full((1, 30, 8), 1e4).to(dtype)
    key[0, 11] = -1e4
    value = torch.arange(30 * 4).view(1, 30, 4).to(dtype)
    got = attend_whole(query, key, value, 0, 1.0)
    assert got.isfinite().all()
    equal = [i for i in range(30) if i != 11]
    assert torch.allclose(got[29, 0], value[0, equal].mean(0))


def test_other_numbers_have_no_such_attention() -> None:
    half = torch.zeros(1, 2, 8, dtype=torch.bfloat16)
    with pytest.raises(NoKernels, match="bfloat16"):
        attend_whole(half, half, half, 0, 1.0)


def test_plain_layers_take_one_call_in_both_precisions(tiny: Callable) -> None:
    _needs_kernels()
    for dtype in DTYPES:
        shard = prepare(load_shard(tiny("llama", layers=2), LayerRange(0, 2), dtype=dtype))
        assert shard.whole is not None and shard.whole._plain is not None
        other = prepare(load_shard(tiny("gemma2", layers=2), LayerRange(0, 2), dtype=dtype))
        assert other.whole is not None and other.whole._plain is None


def _needs_kernels() -> None:
    try:
        kernels(32), kernels(64)
    except NoKernels as error:
        pytest.skip(str(error))
