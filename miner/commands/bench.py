"""How fast is this machine, by the engine's own real steps?

The numbers are those that a miner announces: teraflops and gigabytes per second of the compute
thread, and τ per layer of real decode steps on real weights. What was measured is kept, so that
`miner quote` need not measure again.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from core.protocol.errors import HeadraceError, ModelUnknown, UsageError
from core.protocol.ids import Kind, short
from core.protocol.signing import Domain
from core.protocol.types import LayerRange
from core.protocol.whole_file import write_whole
from core.runtime.commands.console import Run
from core.runtime.folders import make_private
from core.runtime.network.sending import takes_mb_s
from core.runtime.settings import Settings
from miner.commands.facts import dial, operator_address
from miner.commands.market import ask, model_id_of
from miner.commands.results import Bench, PeerDistance
from miner.records.home import model_folder

if TYPE_CHECKING:
    from core.engine.weights.shape import ModelSizes
    from core.models.having import ModelHere
    from core.runtime.network.channel import Peers
    from miner.compute.compute import Compute

KV_BYTES = 64 * 2**20
CHUNKS = 5
DIAL_WITHIN_S = 2.0
DIALS = 3
MAX_PEERS = 16
#: What is sent to see how fast a link is: a few seconds' worth of the slowest line that could serve
#: at all.
SENT_BYTES, SENDS, SENT_WITHIN_S = 2**20, 2, 5.0


async def _model(settings: Settings) -> tuple[ModelHere, str]:
    """The configured model, with its small files fetched unless they are here, and its numerics.

    The chain says these. A model that is on this machine and not registered is measured in what
    `engine.dtype` says, float32 if it is auto.
    """
    from core.models.having import ModelHere, have_model, whole_here
    from core.models.local import open_registry
    from core.models.names import local_id, model_id_of, numerics_of, spec_of
    from miner.compute.numerics import refuse_other_numerics

    name, said = settings.miner.model, settings.engine.dtype
    unregistered = "float32" if said == "auto" else said
    whole = whole_here(settings, name, local_id(name, settings))
    if "ModelRegistry" not in settings.network.contracts:
        return whole or ModelHere(model_folder(settings), None, ()), unregistered
    async with open_registry(settings) as chain:
        try:
            model_id = await model_id_of(chain, name, settings)
        except ModelUnknown:
            if whole is None:
                raise
            return whole, unregistered
        spec = await spec_of(chain, model_id)
        refuse_other_numerics(settings, name, spec)
        here = whole or await have_model(chain, settings, name, model_id)
        return here, numerics_of(spec)


async def measure_machine(run: Run, layers: LayerRange | None, *, save: bool) -> Bench:
    """Load the layers, else as many as fit, and time them in the numerics of the model.

    Raises ModelMissing, UsageError, also for an `engine.dtype` that contradicts a registered model,
    and ChainUnreachable where a network is configured and its chain does not answer.
    """
    from core.engine.weights.shape import describe_model
    from miner.compute.compute import Compute
    from miner.records.machine import compute_device, memory_limit_bytes

    settings = run.settings
    device = compute_device(settings.engine.device)
    files, numerics = await _model(settings)
    folder = files.folder
    shape = await asyncio.to_thread(describe_model, folder, numerics)
    limit_bytes = memory_limit_bytes(settings)
    shares = device.shares(limit_bytes)
    held = fitting_layers(shape, layers, limit_bytes)
    compute = Compute(threads=settings.engine.threads or 1)
    try:
        with run.stage(1, 4, "the processor" if device.is_processor else device.title):
            tflops, bandwidth_gb_s = await compute.benchmark(shares, numerics)
        with run.stage(2, 4, f"loading layers {held}"):
            await asyncio.to_thread(files.fetch, held)
            shard_bytes = await _load(compute, folder, held, limit_bytes, numerics, shares)
        with run.stage(3, 4, "decode steps and a prompt"):
            await compute.measure()
            prefill = await _prefill_tokens_per_s(compute, shape, held)
        taus = {str(rows): round(ms, 5) for rows, ms in compute.metrics().tau_ms_by_rows.items()}
        tau_ms, kv_tokens = compute.tau_ms_per_layer, compute.kv_capacity_tokens
        # The largest measured batch that this miner would run.
        batch = max((n for n in map(int, taus) if n <= settings.miner.max_batch), default=1)
    finally:
        compute.close()
    with run.stage(4, 4, "the way to other machines") as stage:
        peers, problem = await _peers(settings)
        stage.set(len(peers), problem)
    found = Bench(
        model=settings.miner.model,
        layers=str(held),
        model_layers=shape.layers,
        numerics=numerics,
        weights_bytes=shard_bytes,
        memory_limit_bytes=limit_bytes,
        kv_tokens=kv_tokens,
        tflops=round(tflops, 4),
        bandwidth_gb_s=round(bandwidth_gb_s, 3),
        tau_ms_per_layer=round(tau_ms, 5),
        tau_ms_by_rows=taus,
        prefill_tokens_per_s=round(prefill, 1),
        decode_tokens_per_s=round(1e3 / (tau_ms * len(held)), 1),
        batch_rows=batch,
        batch_tokens_per_s=round(batch * 1e3 / (taus[str(batch)] * len(held)), 1),
        kernels=_kernels(),
        peers=peers,
        machine={
            "id": settings.miner.name or "this-machine",
            "memory_bytes": limit_bytes,
            "tflops": round(tflops, 4),
            "bandwidth_gb_s": round(bandwidth_gb_s, 3),
            "tau_ms_per_layer": round(tau_ms, 5),
        },
        measured_at=int(time.time()),
        saved=str(bench_file(settings)) if save else None,
    )
    if save:
        _write(bench_file(settings), found)
    return found


def fitting_layers(shape: ModelSizes, wanted: LayerRange | None, limit_bytes: int) -> LayerRange:
    """The layers to load: those named, else as many of the first as fit beside a little cache."""
    if wanted is not None:
        if wanted.end > shape.layers:
            raise UsageError(
                f"there are no layers {wanted}",
                f"the model has {shape.layers}",
                next_step=f"name layers between 0 and {shape.layers}, such as --layers "
                f"0:{shape.layers}",
            )
        return wanted
    count = most_layers(shape, limit_bytes)
    if count:
        return LayerRange(0, count)
    raise UsageError(
        "not one layer fits",
        f"the first takes {shape.shard_bytes(0, 1)} bytes and the cache {KV_BYTES}, allowed are "
        f"{limit_bytes}",
        next_step="raise miner.memory_limit",
    )


def most_layers(shape: ModelSizes, limit_bytes: int) -> int:
    """How many of the first layers fit beside a little cache."""
    counts = range(shape.layers, 0, -1)
    return next((n for n in counts if shape.shard_bytes(0, n) + KV_BYTES <= limit_bytes), 0)


def bench_file(settings: Settings) -> Path:
    """Where the measurements of the configured model are kept."""
    name = Path(settings.miner.model).name
    return settings.folders.state / "miner" / "bench" / f"{name}.json"


def read_bench(settings: Settings) -> Bench | None:
    """What was measured last for the configured model; None for nothing, or another version's."""
    try:
        return msgspec.json.decode(bench_file(settings).read_bytes(), type=Bench)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: Path, found: Bench) -> None:
    make_private(path.parent)
    write_whole(path, (json.dumps(msgspec.to_builtins(found), indent=2) + "\n").encode())


async def _load(
    compute: Compute,
    folder: Path,
    held: LayerRange,
    limit_bytes: int,
    numerics: str,
    shares: Sequence[tuple[str, int]],
) -> int:
    weights_bytes = 0

    def load() -> Any:
        from core.engine.weights.load_shard import load_shard

        return load_shard(folder, held, numerics=numerics, devices=shares, self_check=True)

    def room(shard: Any) -> int:
        nonlocal weights_bytes
        weights_bytes = shard.bytes  # once loaded, kernels may hold them elsewhere
        left = shard.room(limit_bytes)
        if left < KV_BYTES // 16:
            raise UsageError(
                f"layers {held} do not fit",
                f"their weights take {weights_bytes} bytes of {limit_bytes}",
                next_step="raise miner.memory_limit or measure fewer layers",
            )
        return min(left, KV_BYTES)

    await compute.load(load, kv_bytes=room, model_dir=folder)
    return weights_bytes


async def _prefill_tokens_per_s(compute: Compute, shape: ModelSizes, held: LayerRange) -> float:
    """The median chunk of a made-up prompt, each chunk fed to a request of its own."""
    from core.batching.chunks import CHUNK_TOKENS
    from miner.compute.compute import RequestSpec

    rows = min(CHUNK_TOKENS, compute.longest_request(shape.context))
    x: bytes | list[int]
    x = [1] * rows if held.start == 0 else bytes(4 * shape.hidden * rows)
    feed = compute.feed if held.end == shape.layers else compute.rows
    times = []
    for number in range(CHUNKS):
        key = ("bench", number)
        started = time.perf_counter()
        await feed(RequestSpec(key, most_rows=rows), x)
        times.append(time.perf_counter() - started)
        await compute.drop(key)
    return rows / sorted(times)[CHUNKS // 2]


def _kernels() -> str:
    from core.engine.native.native import NoKernels, kernels

    try:
        kernels()
    except NoKernels as error:
        return f"none: {error}"
    return "compiled for this processor"


async def _peers(settings: Settings) -> tuple[list[PeerDistance], str]:
    """Distances to the machines that the matcher knows, and why there are none."""
    if not settings.network.matcher_places:
        return [], "no matcher is configured"
    try:
        known = (await ask(settings, "/v1/miners"))["miners"]
    except HeadraceError as error:
        return [], error.what
    model_id = model_id_of(settings)
    ours = (operator_address(settings)[0] or "").lower()  # "": it has not registered yet
    others = [
        m
        for m in known
        if m["alive"] and m["modelId"].lower() == model_id and m["operator"].lower() != ours
    ][:MAX_PEERS]
    times = await asyncio.gather(*(round_trip_ms(m["endpoint"]) for m in others))
    rates = await _rates(settings, others)
    return [
        PeerDistance(short(Kind.MINER, m["operator"]), m["endpoint"], ms, rate)
        for m, ms, rate in zip(others, times, rates, strict=True)
    ], ""


async def _rates(settings: Settings, others: Sequence[dict[str, Any]]) -> list[float | None]:
    """How fast each takes bytes, one after another: at the same time they would share our own line.

    Under a key of its own: a stream needs one, and here any will do.
    """
    from core.keys.signer import Signer
    from core.runtime.network.channel import Peers, StreamIdentity

    if not others:
        return []
    chain_id, _ = settings.require_network()
    domain = Domain(chain_id, settings.network.contract("TaskRegistry"))
    signer = Signer(os.urandom(32), chain_id=chain_id)
    peers = Peers(StreamIdentity.on(settings.network, signer, domain))
    try:
        return [await sends_mbit_s(peers, m["operator"], m["endpoint"]) for m in others]
    finally:
        await peers.close()


async def sends_mbit_s(peers: Peers, operator: str, endpoint: str) -> float | None:
    """How fast an authenticated stream takes a mebibyte, the best of a few; None where there is
    none, or not within seconds.
    """
    try:
        channel = await peers.get(operator, endpoint, timeout_s=DIAL_WITHIN_S)
        async with asyncio.timeout(SENDS * SENT_WITHIN_S):
            mb_s = await takes_mb_s(channel, SENT_BYTES, SENDS, timeout_s=SENT_WITHIN_S)
    except (HeadraceError, TimeoutError):
        return None
    return None if mb_s is None else round(8 * mb_s, 1)


async def round_trip_ms(endpoint: str) -> float | None:
    """The shortest of a few connections to host:port, which take one round trip each; None when
    none answers, or only through a relay, where opening another stream takes no round trip."""
    if not endpoint.rpartition(":")[2].isdigit():
        return None
    found: list[float] = []
    for _ in range(DIALS):
        started = time.perf_counter()
        reached, _ = await dial(endpoint, DIAL_WITHIN_S)
        if not reached:
            return None
        found.append((time.perf_counter() - started) * 1e3)
    return round(min(found), 3)


def bench_lines(found: Bench) -> Sequence[tuple[str, str]]:
    """What a person reads."""
    reached = [p.round_trip_ms for p in found.peers if p.round_trip_ms is not None]
    rates = [p.sends_mbit_s for p in found.peers if p.sends_mbit_s is not None]
    return [
        (
            "model",
            f"{found.model}, layers {found.layers} of {found.model_layers}, in {found.numerics}",
        ),
        (
            "memory",
            f"{found.weights_bytes / 2**20:,.0f} MiB of weights, {found.kv_tokens:,} tokens of "
            f"cache, limit {found.memory_limit_bytes / 2**20:,.0f} MiB",
        ),
        (
            "processor",
            f"{found.tflops:.3f} Tflop/s, {found.bandwidth_gb_s:.1f} GB/s; C kernels "
            f"{found.kernels}",
        ),
        (
            "one layer",
            ", ".join(f"{ms:.3f} ms for {rows} rows" for rows, ms in found.tau_ms_by_rows.items()),
        ),
        ("prompts", f"{found.prefill_tokens_per_s:,.0f} tokens/s through these layers"),
        (
            "answers",
            f"{found.decode_tokens_per_s:,.0f} tokens/s alone, {found.batch_tokens_per_s:,.0f} "
            f"tokens/s for {found.batch_rows} at once",
        ),
        (
            "other machines",
            f"{len(found.peers)} known, {len(reached)} answer"
            + (f", nearest after {min(reached):.1f} ms" if reached else "")
            + (f", take {min(rates):,.0f} to {max(rates):,.0f} Mbit/s" if rates else ""),
        ),
        ("kept in", found.saved or "nowhere"),
    ]
