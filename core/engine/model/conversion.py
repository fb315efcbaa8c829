"""Which parameter of the model does a stored tensor become, and how?

Checkpoints of mixtures of experts store one matrix per expert where the library's models hold all
in one parameter, and old checkpoints have old names. The library knows both; its own transforms are
applied here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from core.protocol.errors import ModelUnsupported

_NUMBER = re.compile(r"\.\d+\.")


@dataclass
class TensorGroup:
    """Tensors that together become parameters; `sources` maps pattern → names, in order."""

    target: str
    converter: Any = None
    sources: dict[str, list[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [name for names in self.sources.values() for name in names]


class Renaming:
    """The library's name transforms for one kind of model."""

    def __init__(self, model: Any) -> None:
        """`model` may be on the meta device and need not have the layers whose names are asked."""
        mapping = get_model_conversion_mapping(model)
        self._renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
        self._converters = [m for m in mapping if isinstance(m, WeightConverter)]
        self._by_pattern = {p: c for c in self._converters for p in c.source_patterns}
        self._config = model.config
        self._own = {_any_layer(name) for name in model.state_dict()}

    def targets(self, names: Iterable[str]) -> dict[str, str]:
        """Name in a checkpoint → name of the parameter that it becomes (the first of several)."""
        return {name: target for name, target, _ in self._renamed(names)}

    def groups(self, names: Iterable[str]) -> list[TensorGroup]:
        """The same names, put together where several tensors become one parameter."""
        groups: dict[str, TensorGroup] = {}
        for name, target, pattern in self._renamed(names):
            group = groups.setdefault(
                target, TensorGroup(target, self._by_pattern.get(pattern or ""))
            )
            group.sources.setdefault(pattern or name, []).append(name)
        return list(groups.values())

    def convert(self, group: TensorGroup, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Parameters of a group's tensors. ModelUnsupported where they do not fit together."""
        tensors = {p: [read(n) for n in names] for p, names in group.sources.items()}
        return self._apply(group, tensors)

    def convert_by_expert(
        self, group: TensorGroup, read: Callable[[str], Tensor]
    ) -> Iterable[tuple[int, Tensor]] | None:
        """One expert after the other, so that never more than one is in memory twice.

        None where the library's steps are not "stack the experts, then join their matrices" or the
        names do not pair up.
        """
        steps = list(group.converter.operations)
        stacks = steps and type(steps[0]) is MergeModulelist and steps[0].dim == 0
        joins = all(type(step) is Concatenate and step.dim > 0 for step in steps[1:])
        counts = {len(names) for names in group.sources.values()}
        complete = set(group.sources) == set(group.converter.source_patterns)
        if not (stacks and joins and complete and len(counts) == 1):
            return None
        return self._experts(group, read, counts.pop())

    def _experts(
        self, group: TensorGroup, read: Callable[[str], Tensor], count: int
    ) -> Iterable[tuple[int, Tensor]]:
        for expert in range(count):
            one = {pattern: [read(names[expert])] for pattern, names in group.sources.items()}
            (made,) = self._apply(group, one).values()
            yield expert, made

    def _apply(self, group: TensorGroup, tensors: dict[str, list[Tensor]]) -> dict[str, Tensor]:
        converter = deepcopy(group.converter)
        for pattern, values in tensors.items():
            for value in values:
                converter.add_tensor(group.target, group.target, pattern, value)
        try:
            with torch.no_grad():
                made = converter.convert(group.target, model=None, config=self._config)
        except (ValueError, RuntimeError, KeyError, IndexError, TypeError) as error:
            raise ModelUnsupported(f"cannot build {group.target}", why=str(error)) from error
        return {n: t[0] if isinstance(t, list) else t for n, t in made.items()}

    def _renamed(self, names: Iterable[str]) -> Iterable[tuple[str, str, str | None]]:
        renamings = deepcopy(self._renamings)  # some remember which names they have seen
        for name in sorted(names, key=dot_natural_key):
            target, pattern = rename_source_key(name, renamings, self._converters)
            if _any_layer(target) not in self._own and _any_layer(name) in self._own:
                target, pattern = name, None
            yield name, target, pattern


def _any_layer(name: str) -> str:
    return _NUMBER.sub(".#.", name)
