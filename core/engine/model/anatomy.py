"""Where in any decoder are the embedding, the layers and the head?

Nothing is known about the model but how the library builds it: a small clone of its architecture
runs once, and what ran before its first layer, after its last one and between them tells which
stage needs which module.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import logging as library_logging

from core.engine.model.clone import tiny_clone
from core.engine.model.conversion import Renaming
from core.engine.model.library import AutoModelForCausalLM
from core.engine.model.naming import OLD_CONSTANTS, Family
from core.engine.model.refusal import attention_of, parse_config, refuse_unsupported, unsupported
from core.protocol.errors import ModelUnsupported


@lru_cache(maxsize=64)
def family_of_config(config_json: str) -> Family:
    """The family of a `config.json`'s text. Raises ModelUnsupported, naming what cannot be cut."""
    config = parse_config(config_json)
    refuse_unsupported(config)
    return derive_family(config)


def derive_family(config: PreTrainedConfig) -> Family:
    """How a model of this configuration is laid out, from a run of its small clone."""
    with quiet_library():
        model = build_tiny(config)
        layers_path, layers = layer_list(model)
        before, after = _trace(model, layers_path, layers)
    base_prefix = model.base_model_prefix
    names = {id(module): name for name, module in model.named_modules()}
    head = names.get(id(model.get_output_embeddings()))
    embedding = names.get(id(model.get_input_embeddings()))
    if head is None or embedding is None or embedding not in before:
        raise unsupported(config, "an embedding or head of another kind")
    owned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    ignored = tuple(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())
    return Family(
        model_type=config.model_type,
        prefix=base_prefix,
        layers=layers_path,
        before=(embedding, *(name for name in before if name != embedding)),
        after=tuple(name for name in after if name != head),
        head=head,
        tied_by_default=bool(config.tie_word_embeddings),
        stale=tuple(
            pattern
            for pattern in (*OLD_CONSTANTS, *ignored)
            if not any(re.search(pattern, name) for name in owned)
        ),
        targets=Renaming(model).targets,
    )


def build_tiny(config: PreTrainedConfig) -> Any:
    """A random model of the same architecture, small and in float32. Raises ModelUnsupported."""
    try:
        tiny = tiny_clone(config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(
                tiny, dtype=torch.float32, attn_implementation=attention_of(tiny)
            ).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    if (
                        parameter.dim() == 1
                    ):  # norms and biases start at 0 or 1 and would hide mistakes
                        parameter.add_(torch.randn_like(parameter) * 0.1)
    except Exception as error:  # foreign code, of foreign sizes
        raise unsupported(config, f"sizes that no small clone can be built of ({error})") from error
    return model


def layer_list(model: Any) -> tuple[str, nn.ModuleList]:
    """Path and list of a model's layers: the one outermost list with as many entries."""
    count = model.config.num_hidden_layers
    lists = {n: m for n, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    outer = {n: m for n, m in lists.items() if not any(n.startswith(f"{o}.") for o in lists)}
    found = [(name, module) for name, module in outer.items() if len(module) == count]
    if len(found) != 1 or len({id(layer) for layer in found[0][1]}) != count:
        raise unsupported(model.config, f"{len(found)} lists of {count} layers")
    return found[0]


def _trace(model: Any, layers_path: str, layers: nn.ModuleList) -> tuple[list[str], list[str]]:
    """Paths of the weighted modules that run before the first layer, and after the last."""
    inside = tuple(f"{layers_path}.{i}." for i in range(len(layers)))
    outside = {
        name: module
        for name, module in model.named_modules()
        if not f"{name}.".startswith(inside) and _has_own_weights(module)
    }
    if around := [n for n in outside if f"{layers_path}.".startswith(f"{n}." if n else "")]:
        raise unsupported(model.config, f"weights that no part of it owns ({around[0]})")
    order: list[str | None] = []  # None for a layer

    def note(name: str | None) -> Callable[..., None]:
        return lambda *_: order.append(name)

    handles = [layer.register_forward_pre_hook(note(None)) for layer in layers]
    handles += [m.register_forward_pre_hook(note(name)) for name, m in outside.items()]
    try:
        with torch.inference_mode():
            model(input_ids=torch.arange(12).unsqueeze(0), use_cache=False)
    except Exception as error:  # foreign code, of foreign sizes
        raise unsupported(model.config, f"a small clone that does not run ({error})") from error
    finally:
        for handle in handles:
            handle.remove()
    places = [i for i, name in enumerate(order) if name is None]
    if not places or len(places) != len(layers):
        raise unsupported(model.config, "layers that do not run once each, in order")
    first, last = places[0], places[-1]
    if between := [name for name in order[first:last] if name is not None]:
        raise unsupported(model.config, f"weights that several layers share ({between[0]})")
    if idle := outside.keys() - set(order):
        raise unsupported(
            model.config, f"weights that text does not pass through ({sorted(idle)[0]})"
        )
    before = dict.fromkeys(name for name in order[:first] if name is not None)
    after = dict.fromkeys(name for name in order[last:] if name is not None)
    return list(before), list(after)


def _has_own_weights(module: nn.Module) -> bool:
    persistent = set(module.state_dict(keep_vars=True)) & {
        n for n, _ in module.named_buffers(recurse=False)
    }
    return bool(persistent) or any(True for _ in module.parameters(recurse=False))


@contextmanager
def quiet_library() -> Iterator[None]:
    """Keeps the library's advice about the clone's odd sizes out of the log."""
    before = library_logging.get_verbosity()
    library_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        library_logging.set_verbosity(before)


__all__ = ["ModelUnsupported", "build_tiny", "derive_family", "family_of_config", "layer_list"]
