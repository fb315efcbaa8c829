"""A model is found by any of its names; a network that lacks a contract is refused at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client.context import CONTRACTS, Context, model_folder, model_name, open_context
from core.protocol import ids
from core.protocol.errors import ChainUnreachable, ConfigError, ModelMissing, ModelUnknown
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from tests.town.chain import FakeChain
from tests.town.orders import MODEL_ID, SPEC

OTHER_ID = "0x" + "0f" * 32


def settings_of(tmp_path: Path, **network: Any) -> Settings:
    folders = Folders.at(tmp_path)
    folders.networks.mkdir(parents=True, exist_ok=True)
    content = {
        "name": "devnet",
        "chain_id": 31337,
        "rpc_url": "http://127.0.0.1:1",
        "models": {"tiny": MODEL_ID, "gone": OTHER_ID},
        "contracts": {name: "0x" + f"{i:040x}" for i, name in enumerate(CONTRACTS, start=1)},
    }
    (folders.networks / "devnet.json").write_text(json.dumps(content | network))
    return load(environ={}, folders=folders)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(settings_of(tmp_path), FakeChain())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "typed",
    [
        "tiny",
        MODEL_ID,
        "0x" + MODEL_ID[2:].upper(),
        ids.full(ids.Kind.MODEL, MODEL_ID),
        ids.short(ids.Kind.MODEL, MODEL_ID),
    ],
)
async def test_model_is_found_by_any_of_its_names(context: Context, typed: str) -> None:
    model = await context.model(typed)
    assert (model.name, model.model_id, model.spec) == ("tiny", MODEL_ID, SPEC)


@pytest.mark.parametrize(
    "typed",
    ["", "t", "Tiny", "huge", "0x", "0x12", "0x" + "zz" * 32, "model_", "model_!", MODEL_ID[2:]],
)
async def test_unknown_model_lists_the_known_ones(context: Context, typed: str) -> None:
    with pytest.raises(ModelUnknown) as caught:
        await context.model(typed)
    assert caught.value.why == "known: gone, tiny"
    assert caught.value.exit_code == 2


async def test_model_that_is_not_registered_is_unknown(context: Context) -> None:
    with pytest.raises(ModelUnknown, match="is not registered"):
        await context.model("gone")


def test_name_of_a_model_id_is_the_network_files(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert model_name(MODEL_ID.upper().replace("0X", "0x"), settings) == "tiny"
    assert model_name("0x" + "11" * 32, settings) is None


def test_model_folder_is_the_configured_caches_then_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    users = tmp_path / "user"
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *a, **k: str(users))
    with pytest.raises(ModelMissing):
        model_folder("tiny", settings)
    for cache in (users, settings.folders.cache):
        folder = cache / "models" / "tiny"
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
        assert model_folder("tiny", settings) == folder


async def test_network_without_a_contract_is_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, contracts={"Escrow": "0x" + "01" * 20})
    with pytest.raises(ConfigError, match="has no address of TestUSD"):
        async with open_context(settings):
            pass


async def test_chain_that_does_not_answer_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ChainUnreachable):
        async with open_context(settings_of(tmp_path)):
            pass


async def test_what_is_sent_is_journaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from core.chain.rpc import RpcChain

    async def check(self: RpcChain) -> None:
        return None

    monkeypatch.setattr(RpcChain, "check", check)
    settings = settings_of(tmp_path)
    async with open_context(settings) as context:
        assert context.chain._sender.journal is not None
        context.chain._sender.journal({"what": "Escrow.deposit", "hash": "0xab", "outcome": "sent"})
    (line,) = settings.folders.transactions.read_text().splitlines()
    assert json.loads(line)["what"] == "Escrow.deposit"
