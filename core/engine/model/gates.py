"""How do rows enter and leave the owned layers anywhere, with the library's own modules untouched?

Every owned layer's `forward` is wrapped. Outside of a pass the wrapper changes nothing. During one
it skips the layers that the rows do not run, hands the received rows to the first that they do run,
whatever the model made of its inputs on the way there, and keeps the output of the last, and of
others that are named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class LayerGates:
    """The wrapped layers of one shard. One pass at a time, from one thread."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self.layers = layers
        self.layer = -1  # the one now running, counted in the shard
        self._start, self._end = 0, -1  # nothing is gated
        self._rows: Tensor | None = None
        self._out: Tensor | None = None
        self._taps: Collection[int] = ()
        self._tapped: list[Tensor] = []
        self._gives_tuple = [False] * len(layers)
        for number, layer in enumerate(layers):
            layer.forward = self._gate(number, layer.forward)

    def remove(self) -> None:
        """Give the layers their own `forward` back."""
        for layer in self.layers:
            inner = layer.forward.__wrapped__
            del layer.forward
            if layer.forward != inner:  # other code had put another one there
                layer.forward = inner

    @contextmanager
    def only(
        self, start: int, end: int, rows: Tensor | None, taps: Collection[int] = ()
    ) -> Iterator[LayerGates]:
        """Within, the model runs layers [start, end) on `rows` [1, T, D], or its own inputs.

        What enters the layers `taps` is kept, beside what the last one gives.
        """
        self._start, self._end, self._rows, self._out = start, end, rows, None
        self._taps, self._tapped = taps, []
        try:
            yield self
        finally:
            self._start, self._end, self._rows, self._out, self.layer = 0, -1, None, None, -1
            self._taps, self._tapped = (), []

    @property
    def out(self) -> Tensor:
        """What the last layer of the pass gave, [1, T, D]."""
        assert self._out is not None, "no layer has run"
        return self._out

    @property
    def tapped(self) -> list[Tensor]:
        """What entered the tapped layers, in their order, [1, T, D] each."""
        return self._tapped

    def _gate(self, number: int, inner: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._end < 0:
                return inner(*args, **kwargs)
            named = not args
            hidden = kwargs["hidden_states"] if named else args[0]
            if not self._start <= number < self._end:
                return (hidden,) if self._gives_tuple[number] else hidden
            self.layer = number
            if number == self._start and self._rows is not None:
                rows = self._rows.to(hidden.device)  # the layer's, where there are several
                if named:
                    kwargs["hidden_states"] = rows
                else:
                    args = (rows, *args[1:])
            out = inner(*args, **kwargs)
            self._gives_tuple[number] = isinstance(out, tuple)
            left = out[0] if isinstance(out, tuple) else out
            if number + 1 in self._taps:
                self._tapped.append(left)
            if number == self._end - 1:
                self._out = left
            return out

        forward.__wrapped__ = inner  # type: ignore[attr-defined]
        return forward
