"""How does a model that was cut take activations in the middle and give them up again?

A model does things before its first layer (scaling embeddings, adding positions) and after its last
one (norms). A later stage must not do the former again, an earlier one not yet the latter. Hooks
hand the first owned layer exactly what was received, whatever the model would feed it, and take the
last owned layer's output before the model touches it. So every stage is called like the whole model
is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PassThrough(nn.Module):
    """Stands where a module's weights belong to another stage.

    Returns its first tensor of activations unchanged. Called with ids or positions only, as a table
    of position embeddings is, it returns a zero: what it is added to is replaced at the first layer
    anyway.
    """

    def __init__(self, width: int) -> None:
        """`width` is the model's D, by which activations are told from masks."""
        super().__init__()
        self._width = width

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        for value in (*args, *kwargs.values()):
            if not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            if value.dim() > 1 and value.shape[-1] == self._width:
                return value
        return torch.zeros(())


def take_activations(model: Any, first_layer: nn.Module) -> None:
    """Let `model(inputs_embeds=x)` and its decoder alone give x to the first layer unchanged."""
    received: list[Tensor] = []

    def remember(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        received[:] = [kwargs["inputs_embeds"]]

    def substitute(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not received:
            return args, kwargs
        x = received.pop()
        if args:
            return (x, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": x}

    # Some language models call what is inside their decoder and not the decoder itself.
    model.register_forward_pre_hook(remember, with_kwargs=True)
    model.base_model.register_forward_pre_hook(remember, with_kwargs=True)
    first_layer.register_forward_pre_hook(substitute, with_kwargs=True)


def give_activations(model: Any, last_layer: nn.Module) -> None:
    """Let `model.base_model(…).last_hidden_state` be what the last owned layer returned."""
    produced: list[Tensor] = []

    def remember(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        produced[:] = [output[0] if isinstance(output, tuple | list) else output]

    def substitute(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if produced:
            output.last_hidden_state = produced.pop()
        return output

    last_layer.register_forward_hook(remember)
    model.base_model.register_forward_hook(substitute)


def bring_along(layer: nn.Module, device: torch.device) -> None:
    """Have a layer be given on its own device all that it is given, rows and what belongs to them.

    After `take_activations`, which says what the first one is given.
    """

    def bring(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _moved(args, device), {name: _moved(one, device) for name, one in kwargs.items()}

    layer.register_forward_pre_hook(bring, with_kwargs=True)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return tuple(_moved(one, device) for one in value) if type(value) is tuple else value
