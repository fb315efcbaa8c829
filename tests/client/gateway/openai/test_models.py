"""How are tokens drawn where a request does not say?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client.gateway.openai.fields import CHAT, read_wanted
from client.gateway.openai.models import ServedModel
from tests.client.gateway.toy import MODEL, tokenizer_in

STATED = {"temperature": 0.2, "top_p": 0.9, "top_k": 64, "min_p": "much", "max_length": 20}


@pytest.mark.parametrize(
    ("stated", "body", "drawn"),
    [
        (STATED, {}, (200_000, 900_000, 64)),
        (STATED, {"temperature": 0.7}, (700_000, 900_000, 64)),
        (STATED, {"top_p": 1, "top_k": 0}, (200_000, 1_000_000, 0)),
        (STATED, {"temperature": None}, (200_000, 900_000, 64)),
        ({}, {}, (1_000_000, 1_000_000, 0)),
        ([], {}, (1_000_000, 1_000_000, 0)),
        ({"temperature": -3}, {}, (1_000_000, 1_000_000, 0)),
    ],
)
def test_they_are_drawn_as_the_models_makers_say(
    tmp_path: Path, stated: Any, body: dict[str, Any], drawn: tuple[int, int, int]
) -> None:
    served = ServedModel(MODEL, tokenizer_in(tmp_path))
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    asks = {"model": "toy", "messages": [{"role": "user", "content": "x"}]}
    found = served.sampling(read_wanted(asks | body, CHAT))
    assert (found.temperature_micro, found.top_p_micro, found.top_k) == drawn
    assert found.min_p_micro == 0
