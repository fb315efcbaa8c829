"""How are a layer's matrices held as integers?

torchao quantises and multiplies. Only matrices inside layers are quantised; a layer whose matrices
are something else than linear modules is refused rather than left wide under a name that promises
otherwise.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from core.engine.memory.heap import return_freed_memory
from core.engine.model.naming import Family
from core.engine.weights.formats import NumberFormat
from core.protocol.errors import ModelUnsupported

_INT4_MIDDLE = 8  # of 0 … 15, which CUDA's kernel takes off again
_INNER_TILES = 8


def refuse_unquantisable(
    config: PreTrainedConfig, layers: nn.ModuleList, form: NumberFormat
) -> None:
    """Raises ModelUnsupported where a matrix of the layers cannot be held in this format."""
    for path, module in layers.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() < 2:
                continue
            why = ""
            if not isinstance(module, nn.Linear):
                why = f"{path}.{name} is no linear module but {type(module).__name__}"
            elif form.group and parameter.shape[1] % form.group:
                why = f"{path} has {parameter.shape[1]} inputs, no multiple of {form.group}"
            if why:
                raise ModelUnsupported(
                    f"cannot hold this {config.model_type} model as {form.name}",
                    why=why,
                    numerics=form.name,
                )


def quantise_layer(layer: nn.Module, form: NumberFormat, *, reference: bool = False) -> None:
    """Hold a layer's matrices in this format; with `reference`, the same values in float64."""
    if not form.bits:
        return
    compute = getattr(torch, form.compute)
    for module in layer.modules():
        if isinstance(module, nn.Linear):
            if reference:
                wide = _exact_values(module.weight.to(compute), form)
                module.weight = nn.Parameter(wide, requires_grad=False)
            else:
                _quantise(module, form)
            return_freed_memory()


def round_to(model: nn.Module, family: Family, form: NumberFormat) -> None:
    """Give what a float64 reference does not quantise the values of a machine of this format.

    What is behind the layers has float32's (`core.engine.model.wide_end`); a table that the head
    shares with the embedding becomes two where these differ.
    """
    compute, quantised = getattr(torch, form.compute), set()
    head, table = model.get_submodule(family.head), model.get_submodule(family.before[0])
    with torch.no_grad():
        shared = head.weight is table.weight and not head.weight.is_meta
        if shared and not torch.equal(head.weight.float(), head.weight.to(compute).float()):
            head.weight = nn.Parameter(head.weight.clone(), requires_grad=False)
        ends = [model.get_submodule(path) for path in (*family.after, family.head)]
        wide = {id(p) for end in ends for p in end.parameters()} - {id(table.weight)}
        if form.bits:
            quantised = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)} - wide
        for parameter in model.parameters():
            if not parameter.is_meta and id(parameter) not in quantised:
                parameter.copy_(parameter.to(torch.float32 if id(parameter) in wide else compute))


@cache
def _meet_torchao() -> None:
    """Import torchao, without its word about CUDA kernels where there is no such device."""
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        import torchao  # noqa: F401
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _quantise(module: nn.Linear, form: NumberFormat) -> None:
    """Hold a linear module's weight in integers, on its device.

    They are found on the processor: a division that another device rounds otherwise moves a
    weight at a tie, such as every row's largest, by one whole step, and the machine would serve
    other weights than it is audited with.
    """
    _meet_torchao()
    from torchao.quantization import quantize_

    device = module.weight.device
    module.weight = nn.Parameter(module.weight.detach().cpu(), requires_grad=False)
    quantize_(module, _config(form), filter_fn=lambda found, _: found is module)
    if device.type != "cpu":
        held = _packed_for_cuda(module.weight, form) if form.bits == 4 else module.weight
        module.weight = nn.Parameter(held.to(device), requires_grad=False)


def _config(form: NumberFormat) -> Any:
    if form.bits == 8:
        from torchao.quantization import Int8WeightOnlyConfig

        return Int8WeightOnlyConfig(set_inductor_config=False)
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

    return PrototypeInt4WeightOnlyConfig(group_size=form.group, set_inductor_config=False)


def _packed_for_cuda(held: Any, form: NumberFormat) -> Any:
    """The same integers, scales and offsets in the order that CUDA's kernel reads, on that device.

    Inputs are filled up to a multiple of 1024 and outputs to one of 8, with weights of 0.
    """
    from torchao.quantization.quantize_.workflows import Int4TilePackedTo4dTensor

    outputs, inputs = held.shape
    wider, longer = -inputs % 1024, -outputs % 8
    integers = nn.functional.pad(_integers(held, form) + _INT4_MIDDLE, (0, wider, 0, longer))
    pairs = (integers[:, ::2] << 4 | integers[:, 1::2]).to(torch.uint8).cuda()
    scales = nn.functional.pad(held.scale_and_zero, (0, 0, 0, longer, 0, wider // form.group))
    return Int4TilePackedTo4dTensor(
        torch.ops.aten._convert_weight_to_int4pack(pairs, _INNER_TILES),
        scales.contiguous().cuda(),
        [1, form.group],
        held.shape,
    )


def _exact_values(weight: Tensor, form: NumberFormat) -> Tensor:
    """The float64 values [outputs, inputs] that the quantised weight stands for."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    module.weight = nn.Parameter(weight.cpu(), requires_grad=False)
    _quantise(module, form)
    held = module.weight
    if form.bits == 8:
        return (held.qdata.double() * held.scale.double()).to(weight.device)
    return _int4_values(held, form).to(weight.device)


def _int4_values(held: Any, form: NumberFormat) -> Tensor:
    outputs, inputs = held.shape
    scales, offsets = held.scale_and_zero.double().unbind(-1)  # [groups, outputs]
    grouped = _integers(held, form).double().reshape(outputs, inputs // form.group, form.group)
    values = grouped * scales.T[..., None] + offsets.T[..., None]
    return values.reshape(outputs, inputs)


def _integers(held: Any, form: NumberFormat) -> Tensor:
    """−8 … 7 of a weight that the processor holds, [outputs, inputs].

    The packing is the kernel's own business, so the kernel unpacks it: with scale 1 and offset 0 it
    multiplies the integers with an identity, exactly.
    """
    outputs, inputs = held.shape
    plain = torch.zeros(inputs // form.group, outputs, 2, dtype=torch.bfloat16)
    plain[..., 0] = 1
    identity = torch.eye(inputs, dtype=torch.bfloat16)
    made = torch.ops.aten._weight_int4pack_mm_for_cpu(identity, held.qdata, form.group, plain)
    return made.T.to(torch.int32)
