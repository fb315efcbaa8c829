"""Does a document that a command printed follow the schema that is published for it?"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs

from core.runtime.commands.schemas import file_name
from devnet.schemas import FOLDER

#: Programs of tests, not of the product.
STRANGERS = ("headrace.prog.", "headrace.job/")


@cache
def _validator(name: str) -> Any:
    file = FOLDER / file_name(name)
    assert file.is_file(), f"no schema is published for {name}: python -m devnet.schemas"
    return jsonschema_rs.validator_for(json.loads(file.read_text()))


def check_document(document: dict[str, Any]) -> None:
    """Fail unless it is exactly what its schema says."""
    name = str(document["schema"])
    if name.startswith(STRANGERS):
        return
    plain = json.loads(json.dumps(document, default=str))
    for error in _validator(name).iter_errors(plain):
        raise AssertionError(f"{name}: {error.message} at {list(error.instance_path)}: {plain}")
