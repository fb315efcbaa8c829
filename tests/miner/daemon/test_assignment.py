"""Who decides which layers a miner holds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from core.engine.sampling.sampling import Sampler
from core.engine.weights.pulled import PulledFolder
from core.models.having import ModelHere
from core.models.local import here
from core.models.places import FolderPlace
from core.models.publication import publication_of
from core.models.pull import begin, pull_small_files
from core.protocol import commit, hashing, signing
from core.protocol import types as t
from core.protocol.errors import CheckFailed, UsageError
from miner.compute.compute import Compute, RequestSpec
from miner.daemon import assignment
from miner.daemon.assignment import Assignment, FetchLog, follow, load, open_model
from tests.miner.compute.test_compute import greedy
from tests.town.machines import spec_of
from tests.town.orders import key

FIRST, SECOND = key(10).address, key(11).address
NOTHING = Assignment(None, 0)


def said(matcher: str, sequence: int, layers: tuple[int, int] | None) -> Assignment:
    held = None if layers is None else t.LayerRange(*layers)
    return Assignment(held, sequence, matcher.lower())


def trusting(*matchers: str) -> frozenset[str]:
    return frozenset(matcher.lower() for matcher in matchers)


def test_the_trusted_matchers_newest_word_counts() -> None:
    now = follow(NOTHING, said(FIRST, 5, (0, 4)), trusting(FIRST), is_silent=False)
    assert now == Assignment(t.LayerRange(0, 4), 5, FIRST.lower())
    assert follow(now, said(FIRST, 4, (2, 4)), trusting(FIRST), is_silent=False) == now, "older"
    later = follow(now, said(FIRST, 6, (0, 3)), trusting(FIRST), is_silent=False)
    assert later.layers == t.LayerRange(0, 3)
    assert follow(now, said(FIRST, 6, None), trusting(FIRST), is_silent=False).layers is None


def test_strangers_are_not_followed() -> None:
    word = said(SECOND, 5, (0, 4))
    assert follow(NOTHING, word, trusting(FIRST), is_silent=True) == NOTHING


def test_the_one_that_is_followed_is_kept_as_long_as_it_speaks() -> None:
    for trusted in (frozenset[str](), trusting(FIRST, SECOND)):
        now = follow(NOTHING, said(SECOND, 5, (0, 4)), trusted, is_silent=True)
        assert follow(now, said(FIRST, 9, (4, 8)), trusted, is_silent=False) == now
        other = follow(now, said(FIRST, 3, (4, 8)), trusted, is_silent=True)
        assert other == said(FIRST, 3, (4, 8)), "sequences are each matcher's own"


async def test_files_of_another_model_are_not_served(model_dir: Path) -> None:
    spec = spec_of(model_dir)
    good = open_model("tiny", signing.model_id(spec), spec, model_dir)
    assert good.eos_ids == {258}
    whole = t.LayerRange(0, spec.layers)
    assert good.shard_root(whole) == commit.to_hex(commit.shard_root(good.roots, 0, spec.layers))
    other = msgspec.structs.replace(spec, weights_root=t.ZERO_HASH)
    with pytest.raises(CheckFailed, match="are not the registered model"):
        open_model("tiny", signing.model_id(other), other, model_dir)


async def test_a_shard_is_measured_and_the_hook_sees_it_first(model_dir: Path) -> None:
    spec = spec_of(model_dir)
    model, compute, seen = (
        open_model("tiny", signing.model_id(spec), spec, model_dir),
        Compute(),
        [],
    )
    serving = await load(
        compute, model, t.LayerRange(1, 3), memory_bytes=2**24, hook=lambda s: seen.append(s.layers)
    )
    assert seen == [t.LayerRange(1, 3)]
    assert compute.tau_ms_per_layer > 0
    assert compute.kv_tokens == 0, "measuring leaves nothing behind"
    assert serving.shard_root == model.shard_root(t.LayerRange(1, 3))
    assert (serving.context, serving.vocab, serving.hidden) == (512, 272, 64)
    assert 0 < serving.kv_tokens * model.kv_bytes_per_token_layer * 2 < 2**24
    assert serving.kv_tokens == compute.kv_capacity_tokens == compute.kv_free_tokens
    for most, context in ((100, 100), (5000, 512)):
        shorter = await load(
            compute, model, t.LayerRange(1, 3), memory_bytes=2**24, max_context=most
        )
        assert shorter.context == context
    plain = await load(compute, model, t.LayerRange(1, 3), memory_bytes=2**24, prefix_share=0)
    beside = 1 + 0.25 * 64 * 4 / (2 * model.kv_bytes_per_token_layer)
    assert plain.kv_tokens == pytest.approx(serving.kv_tokens * beside, rel=0.01), "room for rows"
    compute.close()


async def test_a_shard_on_two_devices_answers_as_on_one_and_fills_the_fuller_one(
    model_dir: Path,
) -> None:
    """Both of them are the processor here."""
    spec, layers = spec_of(model_dir), t.LayerRange(1, 4)
    model, found = open_model("tiny", signing.model_id(spec), spec, model_dir), []
    for devices in ([("cpu", 2**24)], [("cpu", 2**23), ("cpu", 2**23)]):
        compute = Compute()
        serving = await load(
            compute, model, layers, memory_bytes=2**24, devices=devices, prefix_share=0
        )
        rows = np.random.default_rng(0).standard_normal((9, serving.hidden), np.float32)
        drawn = await compute.token(RequestSpec(("r", 0)), rows.tobytes(), Sampler(greedy(4), 0))
        found.append((serving.kv_tokens, drawn))
        compute.close()
    (whole, drawn_on_one), (divided, drawn_on_two) = found
    assert drawn_on_one == drawn_on_two
    assert 0.6 * whole < divided < 0.75 * whole, "two of three layers are on one half"


async def test_a_shard_whose_tensors_are_elsewhere_is_fetched_before_it_is_loaded(
    model_dir: Path, tmp_path: Path
) -> None:
    manifest, place = publication_of(model_dir).manifest, FolderPlace(model_dir)
    begin(manifest, tmp_path / "m")
    pull_small_files(manifest, tmp_path / "m", [place])
    files = ModelHere(tmp_path / "m", PulledFolder(tmp_path / "m"), (place,))
    spec = spec_of(model_dir)
    model = open_model("tiny", signing.model_id(spec), spec, files.folder, files)
    compute = Compute()
    serving = await load(compute, model, t.LayerRange(1, 3), memory_bytes=2**24)
    assert serving.shard_root == model.shard_root(t.LayerRange(1, 3))
    assert here(files.folder) == "1:3"
    compute.close()


def test_how_far_fetching_is_is_said_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[dict[str, object]]()
    kept = SimpleNamespace(info=lambda event, **values: said.append({"event": event, **values}))
    monkeypatch.setattr(assignment, "log", kept)
    log = FetchLog("1-2", lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        log(second * 2**20, 100 * 2**20)
    assert [line["event"] for line in said] == ["fetching"] * 2
    assert [(line["mib_per_s"], line["left_s"]) for line in said] == [(1.0, 90), (1.0, 80)]


async def test_who_loads_a_shard_hashes_rows_in_c_where_it_can(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "in_c", None)
    spec = spec_of(model_dir)
    model, compute = open_model("tiny", signing.model_id(spec), spec, model_dir), Compute()
    await load(compute, model, t.LayerRange(1, 3), memory_bytes=2**24)
    compute.close()
    found = hashing.in_c is not None
    assert hashing.hash_in_c() == found


async def test_a_shard_that_does_not_fit_is_refused_with_the_numbers(model_dir: Path) -> None:
    spec = spec_of(model_dir)
    model, compute = open_model("tiny", signing.model_id(spec), spec, model_dir), Compute()
    with pytest.raises(UsageError, match="leaves no room"):
        await load(compute, model, t.LayerRange(0, 4), memory_bytes=1000)
    with pytest.raises(UsageError, match="there are no layers"):
        await load(compute, model, t.LayerRange(2, 9), memory_bytes=2**24)
    compute.close()


async def test_what_is_swapped_is_measured_counted_and_makes_no_request_too_long(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.engine.memory.sizing.copy_bytes_per_s", lambda folder: 1e12)
    spec, layers = spec_of(model_dir), t.LayerRange(1, 3)
    model, compute = open_model("tiny", signing.model_id(spec), spec, model_dir), Compute()
    token_bytes = model.kv_bytes_per_token_layer * 2
    hot = {"memory_bytes": 2**24, "kv_bytes": 1200 * token_bytes}
    alone = await load(compute, model, layers, **hot)
    cold = {"offload_bytes": 4000 * token_bytes, "offload_folder": tmp_path}
    swapped = await load(compute, model, layers, **hot, **cold)
    assert 2.8 * alone.kv_tokens < swapped.kv_tokens == compute.kv_capacity_tokens
    assert swapped.context == alone.context == 512
    assert compute.tau_ms_per_layer > 0 and compute.kv_tokens == 0
    fewer = await load(compute, model, layers, **hot, **cold, max_requests=4)
    assert fewer.kv_tokens < 5 * 512, "no more than so many requests can fill"
    with pytest.raises(UsageError, match="leaves no room"):
        await load(compute, model, layers, **hot, offload_bytes=2**24)
    compute.close()
