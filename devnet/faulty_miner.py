"""A miner with a fault, for demonstrations and tests: the product's daemon with a hook.

`python -m devnet.faulty_miner start [--lie-layer N] [--defend] [--slow-ms-per-layer X]` reads the
same settings as `miner start`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from core.runtime.commands.cli import App, Run
from devnet.faults import corrupt_layer_int8, int8_believer, slow_down

if TYPE_CHECKING:
    from core.engine.model.blocks import ModelShard

app = App(
    "faulty-miner", help="A miner that lies or dawdles, so that an audit can be seen to work."
)


@app.command(daemon=True)
async def start(
    run: Run,
    lie_layer: Annotated[int | None, typer.Option(help="Round this layer to int8.")] = None,
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
            corrupt_layer_int8(shard, lie_layer)
        if slow_ms_per_layer:
            slow_down(shard, slow_ms_per_layer)

    believe = int8_believer(lie_layer) if defend and lie_layer is not None else None
    await run_daemon(run, shard_hook=spoil, trace_hook=believe)


main = app.main

if __name__ == "__main__":
    sys.exit(main())
