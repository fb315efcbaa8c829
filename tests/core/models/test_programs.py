"""What a model's machines must sign follows from the operator program that its profile names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from eth_utils.crypto import keccak

from core.dispute.trace.families import SPAN_LAYERS
from core.models.programs import ModelJudge, judge_of, registered_program, span_layers_of
from core.protocol.errors import ContractRefused, ModelUnsupported
from core.protocol.signing import name_hash
from tests.twins.game import toy

PROGRAM = replace(toy.Toy.make(toy.LLAMA).program, span_layers=3)
OLD = bytes([3]) + PROGRAM.to_bytes()[1:]


class Stored:
    """A chain that stores these programs."""

    addresses = {"ProgramStore": "0x"}

    def __init__(self, *programs: bytes) -> None:
        self._by_hash = {"0x" + keccak(data).hex(): data for data in programs}

    async def read(self, contract: str, function: str, profile: str) -> str:
        assert (contract, function) == ("ProgramStore", "load")
        if profile not in self._by_hash:
            raise ContractRefused("no such program", error="ProgramUnknown")
        return "0x" + self._by_hash[profile].hex()


def of(data: bytes) -> str:
    return "0x" + keccak(data).hex()


async def spans(chain: Any, profile: str) -> int:
    return await span_layers_of(chain, profile)


async def test_a_stored_program_says_its_spans() -> None:
    chain: Any = Stored(PROGRAM.to_bytes(), OLD)
    assert await spans(chain, of(PROGRAM.to_bytes())) == 3
    assert await registered_program(chain, of(PROGRAM.to_bytes())) == PROGRAM
    assert await spans(chain, name_hash("fp32")) == SPAN_LAYERS, "the jury's profile"
    assert await spans(chain, name_hash("another")) == 0
    with pytest.raises(ModelUnsupported, match="unknown here"):
        await registered_program(chain, name_hash("another"))


async def test_a_program_of_another_version_is_refused_and_not_taken_for_none() -> None:
    chain: Any = Stored(OLD)
    for look in (spans, registered_program):
        with pytest.raises(ModelUnsupported, match="cannot be read") as refused:
            await look(chain, of(OLD))
        assert "version 3" in refused.value.why


async def test_a_node_that_shows_another_program_shows_none() -> None:
    chain: Any = Stored(PROGRAM.to_bytes())
    chain._by_hash[of(OLD)] = PROGRAM.to_bytes()
    assert await spans(chain, of(OLD)) == 0


async def test_what_judges_a_model_follows_from_its_profile() -> None:
    shadow = replace(PROGRAM, tolerances=()).to_bytes()
    chain: Any = Stored(PROGRAM.to_bytes(), shadow, OLD)
    assert await judge_of(chain, of(PROGRAM.to_bytes())) == ModelJudge(
        "game", 3, PROGRAM.tolerances
    )
    assert await judge_of(chain, of(shadow)) == ModelJudge("shadow", 3)
    assert await judge_of(chain, name_hash("fp32")) == ModelJudge("jury", SPAN_LAYERS)
    assert await judge_of(chain, name_hash("another")) == ModelJudge("jury")
    assert await judge_of(chain, of(OLD)) == ModelJudge("unreadable")
