"""Which weights has the chain registered for the layers of a plan, and what must a stage sign?"""

from __future__ import annotations

from collections.abc import Sequence

from client.pipeline.verify import RegisteredShards
from core.chain.chain import Chain
from core.models.programs import span_layers_of
from core.protocol.types import Order, Stage


async def shard_roots(
    chain: Chain, model_id: str, plan: Sequence[Stage]
) -> dict[tuple[int, int], str]:
    """The commitment to a stage's weights, by (layer_from, layer_to). Raises ChainUnreachable."""
    spans = [(stage.layer_from, stage.layer_to) for stage in plan]
    return {
        span: str(await chain.read("ModelRegistry", "shardRoot", model_id, *span)) for span in spans
    }


async def registered_shards(chain: Chain, order: Order, plan: Sequence[Stage]) -> RegisteredShards:
    """Those of an order's plan. Raises ChainUnreachable."""
    roots = await shard_roots(chain, order.model_id, plan)
    span_layers = await span_layers_of(chain, order.numerics_profile)
    return RegisteredShards(lambda start, end: roots[start, end], span_layers)
