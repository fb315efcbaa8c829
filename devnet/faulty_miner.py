"""A miner with a fault, for demonstrations and tests: the product's daemon with a hook.

`python -m devnet.faulty_miner start` reads the same settings as `miner start`, and has its own
options: [--lie-layer N [--lie-bits N]] [--defend] [--slow-ms-per-layer X].
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from core.runtime.commands.cli import App, Run
from devnet.faults import corrupt_layer, rounding_believer, slow_down

if TYPE_CHECKING:
    from core.engine.model.blocks import ModelShard

app = App(
    "faulty-miner", help="A miner that lies or dawdles, so that an audit can be seen to work."
)


@app.command(daemon=True)
async def start(
    run: Run,
    lie_layer: Annotated[int | None, typer.Option(help="Round this layer to integers.")] = None,
    lie_bits: Annotated[int, typer.Option(help="Of so many bits.", min=2, max=16)] = 8,
    defend: Annotated[
        bool,
        typer.Option(help="In a dispute, stand by the rounded weights instead of staying silent."),
    ] = False,
    slow_ms_per_layer: Annotated[float, typer.Option(help="Take so much longer.", min=0.0)] = 0.0,
) -> None:
    """Serve like `miner start`, with the fault."""
    from miner.cli import run_daemon

    def spoil(shard: ModelShard) -> None:
        if lie_layer is not None and lie_layer in shard.layers:
            corrupt_layer(shard, lie_layer, lie_bits)
        if slow_ms_per_layer:
            slow_down(shard, slow_ms_per_layer)

    believe = rounding_believer(lie_layer, lie_bits) if defend and lie_layer is not None else None
    await run_daemon(run, shard_hook=spoil, trace_hook=believe)


main = app.main

if __name__ == "__main__":
    sys.exit(main())
