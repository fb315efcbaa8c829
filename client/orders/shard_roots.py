"""Which weights has the chain registered for the layers of a plan?"""

from __future__ import annotations

from collections.abc import Sequence

from core.chain.chain import Chain
from core.protocol.types import Stage


async def shard_roots(
    chain: Chain, model_id: str, plan: Sequence[Stage]
) -> dict[tuple[int, int], str]:
    """The commitment to a stage's weights, by (layer_from, layer_to). Raises ChainUnreachable."""
    spans = [(stage.layer_from, stage.layer_to) for stage in plan]
    return {
        span: str(await chain.read("ModelRegistry", "shardRoot", model_id, *span)) for span in spans
    }
