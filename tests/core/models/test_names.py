"""A person's word for a model means one model: pinned, published, or by its id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.models.names import (
    NO_MODEL,
    local_id,
    model_id_of,
    numerics_of,
    published_places,
    refuse_no_name,
    spec_of,
)
from core.protocol import ids, signing
from core.protocol.errors import ModelUnknown, UsageError
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from tests.town.orders import SPEC

PUBLISHER = "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
PINNED, OTHER = "0x" + "ab" * 32, "0x" + "cd" * 32


class Registry:
    """The registry of a chain, as far as names ask it."""

    chain_id = 31337

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.events_seen: list[Any] = []

    async def read(self, contract: str, function: str, *args: Any) -> Any:
        self.asked.append((function, *args))
        if function == "idOf":
            return OTHER if args == (PUBLISHER, "tuned") else NO_MODEL
        assert function == "exists"
        return False

    async def block_number(self) -> int:
        return 9

    async def events(self, first: int, last: int, *, contract: str | None = None) -> list[Any]:
        assert (first, last, contract) == (3, 9, "ModelRegistry")
        return self.events_seen


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folders = Folders.at(tmp_path)
    folders.networks.mkdir(parents=True)
    network = {"name": "devnet", "chain_id": 31337, "models": {"small": PINNED}}
    (folders.networks / "devnet.json").write_text(json.dumps(network))
    return load(environ={}, folders=folders)


@pytest.mark.parametrize("typed", ["small", PINNED, PINNED.upper().replace("0X", "0x")])
async def test_what_is_pinned_is_never_asked_of_the_chain(typed: str, settings: Settings) -> None:
    chain: Any = Registry()
    assert (await model_id_of(chain, typed, settings)).lower() == PINNED
    assert chain.asked == []
    assert await model_id_of(chain, ids.short(ids.Kind.MODEL, PINNED), settings) == PINNED


async def test_a_publishers_name_is_asked_once_whatever_the_case_of_the_address(
    settings: Settings,
) -> None:
    chain: Any = Registry()
    for typed in (f"{PUBLISHER}/tuned", f"{PUBLISHER.lower()}/tuned"):
        assert await model_id_of(chain, typed, settings) == OTHER
        assert local_id(typed, settings) == OTHER
    assert chain.asked == [("idOf", PUBLISHER, "tuned")]


@pytest.mark.parametrize(
    "typed", [f"{PUBLISHER}/unknown", f"{PUBLISHER}/Tuned", "0x12/tuned", "tuned", "a/b", ""]
)
async def test_what_means_nothing_is_unknown_and_not_kept(typed: str, settings: Settings) -> None:
    chain: Any = Registry()
    with pytest.raises(ModelUnknown) as caught:
        await model_id_of(chain, typed, settings)
    assert caught.value.why == "known: small"
    assert local_id(typed, settings) is None


async def test_an_id_that_nobody_registered_is_unknown() -> None:
    chain: Any = Registry()
    with pytest.raises(ModelUnknown, match="is not registered"):
        await spec_of(chain, OTHER)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "client models publish Qwen/Qwen2.5-7B-Instruct"),
        ("large", "PUBLISHER/NAME"),
    ],
)
def test_what_can_be_no_model_is_refused_with_what_to_do(
    typed: str, said: str, settings: Settings
) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_no_name(typed, settings)
    assert said in caught.value.next_step


def test_names_ids_and_folders_are_not_refused(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").touch()
    for typed in ("small", OTHER, f"{PUBLISHER}/anything", str(tmp_path / "mine")):
        refuse_no_name(typed, settings)


async def test_places_are_the_newest_of_each_name_and_of_this_model_alone() -> None:
    def event(name: str, model_id: str, *places: str) -> Any:
        args = {"id": model_id, "publisher": PUBLISHER, "name": name, "places": places}
        return type("Event", (), {"name": "ModelPublished", "args": args})

    chain: Any = Registry()
    chain.events_seen = [
        event("one", OTHER, "https://a/", "https://b/"),
        event("two", OTHER, "https://c/", "https://b/"),
        event("else", PINNED, "https://d/"),
        event("one", OTHER.upper().replace("0X", "0x"), "https://e/"),
    ]
    assert await published_places(chain, OTHER, 3) == ["https://e/", "https://c/", "https://b/"]


def test_numerics_have_their_name_or_their_hash() -> None:
    import msgspec

    for name in ("float32", "bfloat16", "int4-weight-only"):
        spec = msgspec.structs.replace(SPEC, dtype=signing.name_hash(name))
        assert numerics_of(spec) == name
    strange = msgspec.structs.replace(SPEC, dtype="0x" + "12" * 32)
    assert numerics_of(strange) == strange.dtype
