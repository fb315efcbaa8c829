"""How long does a machine take for one pass over a batch?"""

from __future__ import annotations

from typing import Protocol

from scheduler.fleet.costs import correction, weights_read_bytes
from scheduler.fleet.fleet import Machine, ModelShape

#: Bytes/s at which Helix's simulator joins the inputs of a batch and copies them to the device.
HELIX_COPY_BYTES_S = (4e9, 5e9)


class PassCost(Protocol):
    """Time of `layers` layers for a batch.

    ``context_tokens`` is how much KV cache the batch reads, ``attended`` how many pairs of tokens
    attend to each other; both are 0 unless ``needs_context``.
    """

    needs_context: bool

    def seconds(
        self, layers: int, prefill_tokens: int, decodes: int, context_tokens: int, attended: float
    ) -> float: ...


class ProfileCost:
    """From measured curves; a mixed batch costs the sum of its prompt and its decode time.

    ``lone_decode_doubles`` is Helix's rule for a batch of a single decode step.
    """

    needs_context = False

    __slots__ = ("_decode", "_doubles", "_machine", "_prefill", "_scale")

    def __init__(
        self, machine: Machine, model: ModelShape, *, lone_decode_doubles: bool = False
    ) -> None:
        self._machine = machine
        self._scale = correction(machine, model) / 1e3
        self._doubles = lone_decode_doubles
        self._prefill: dict[int, float] = {0: 0.0}
        self._decode: dict[int, float] = {0: 0.0}

    def seconds(
        self, layers: int, prefill_tokens: int, decodes: int, context_tokens: int, attended: float
    ) -> float:
        """Interpolated, and remembered: there are few sizes of batch."""
        decode = self._decode.get(decodes)
        if decode is None:
            decode = self._read_decode(decodes)
        if prefill_tokens:
            prefill = self._prefill.get(prefill_tokens)
            return layers * (
                decode + (self._read_prefill(prefill_tokens) if prefill is None else prefill)
            )
        return layers * decode

    def _read_decode(self, decodes: int) -> float:
        profile = self._machine.profile
        assert profile is not None
        found = profile.decode_ms_per_layer(decodes) * self._scale
        if decodes == 1 and self._doubles:
            found *= 2
        self._decode[decodes] = found
        return found

    def _read_prefill(self, tokens: int) -> float:
        profile = self._machine.profile
        assert profile is not None
        found = self._prefill[tokens] = profile.prefill_ms_per_layer(tokens) * self._scale
        return found


class RooflineCost:
    """From datasheet values as in `costs`: compute or memory, the larger, over the whole batch."""

    needs_context = True

    __slots__ = ("_context_bytes", "_context_flops", "_flops", "_model", "_scale", "_weights")

    def __init__(self, machine: Machine, model: ModelShape) -> None:
        scale = correction(machine, model)
        compute_s, read_s = scale / (machine.tflops * 1e12), scale / (machine.bandwidth_gb_s * 1e9)
        self._model = model
        self._scale = read_s
        self._flops = model.flops_per_layer_per_token * compute_s
        self._context_flops = model.attention_flops_per_context_token * compute_s
        self._context_bytes = model.kv_bytes_per_token_per_layer * read_s
        self._weights: dict[int, float] = {}

    def seconds(
        self, layers: int, prefill_tokens: int, decodes: int, context_tokens: int, attended: float
    ) -> float:
        """The larger of compute and memory time."""
        tokens = prefill_tokens + decodes
        weights = self._weights.get(tokens)
        if weights is None:
            read = weights_read_bytes(self._model, tokens) * self._scale
            weights = self._weights[tokens] = read
        compute = tokens * self._flops + attended * self._context_flops
        memory = weights + context_tokens * self._context_bytes
        return layers * (compute if compute > memory else memory)


def cost_of(machine: Machine, model: ModelShape, *, helix_rules: bool = False) -> PassCost:
    """The machine's profile where it has one, else its roofline."""
    if machine.profile is not None:
        return ProfileCost(machine, model, lone_decode_doubles=helix_rules)
    return RooflineCost(machine, model)


def head_seconds(machine: Machine, model: ModelShape) -> tuple[float, float]:
    """Time of the output projection per token, and at least: n × the first, or the second."""
    scale = correction(machine, model)
    return (
        scale * model.head_flops_per_token / (machine.tflops * 1e12),
        scale * model.head_bytes / (machine.bandwidth_gb_s * 1e9),
    )
