"""Which family of models is a configuration of?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from core.engine.model.naming import OLD_CONSTANTS, Family


def _modern(model_type: str, *, tied: bool) -> Family:
    return Family(
        model_type,
        "model",
        "model.layers",
        ("model.embed_tokens",),
        ("model.norm",),
        "lm_head",
        tied,
        OLD_CONSTANTS,
    )


#: What `anatomy.derive_family` finds for the commonest families, written down so that their sizes
#: and commitments are known without building a model. Every other family is derived when it is met.
WRITTEN_DOWN = {
    family.model_type: family
    for family in (
        _modern("llama", tied=False),
        _modern("mistral", tied=False),
        _modern("qwen2", tied=False),
        _modern("qwen3", tied=False),
        _modern("gemma2", tied=True),
        _modern("gemma3_text", tied=True),
        Family(
            "gpt2",
            "transformer",
            "transformer.h",
            ("transformer.wte", "transformer.wpe"),
            ("transformer.ln_f",),
            "lm_head",
            True,
            OLD_CONSTANTS,
        ),
    )
}


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a `config.json`. Raises ModelUnsupported. Imports torch for unlisted ones."""
    model_type = config.get("model_type")
    family = WRITTEN_DOWN.get(model_type) if isinstance(model_type, str) else None
    if family is not None:
        return family
    from core.engine.model.anatomy import family_of_config

    return family_of_config(json.dumps(config, sort_keys=True))
