"""Is a network file read as it was signed, and is nothing else taken for one?"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from core.protocol.errors import ConfigError
from core.protocol.network_file import (
    MAX_NETWORK_BYTES,
    NetworkFile,
    read_network,
)
from tests.twins.make_vectors import VectorSigner, network_file

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def signed() -> NetworkFile:
    return network_file().signed_with(VectorSigner())


def test_what_is_written_is_read_and_its_signer_found(signed: NetworkFile) -> None:
    again = read_network(signed.as_json())
    assert again == signed
    assert again.recovered == VectorSigner().address == again.signer


def test_the_order_of_keys_changes_nothing(signed: NetworkFile) -> None:
    document = json.loads(signed.as_json())
    turned = {key: document[key] for key in reversed(document)}
    turned["contracts"] = {key: turned["contracts"][key] for key in reversed(turned["contracts"])}
    assert read_network(json.dumps(turned).encode()).recovered == signed.signer


def test_the_reader_s_own_node_is_not_signed(signed: NetworkFile) -> None:
    assert replace(signed, rpc_url="http://mine").digest == signed.digest


def _changes(signed: NetworkFile) -> dict[str, Any]:
    return {
        "name": "other",
        "revision": 8,
        "chain_id": 1,
        "contracts": {**signed.contracts, "Escrow": signed.owner},
        "creations": {},
        "deploy_block": 13,
        "token": replace(signed.token, decimals=8),
        "token_symbol": "eur",
        "owner": signed.guardian,
        "guardian": signed.owner,
        "fee_recipient": signed.owner,
        "arbitrators": signed.arbitrators[:1],
        "parameters": replace(signed.parameters, turn_s=1),
        "bootstrap_peers": (),
        "matchers": (),
        "models": {"tiny": "0x" + "00" * 32},
    }


def test_every_other_field_is_signed(signed: NetworkFile) -> None:
    changes = _changes(signed)
    own = {"format", "rpc_url", "signer", "signature"}
    assert {*changes, *own} == set(NetworkFile.__struct_fields__)
    for field, value in changes.items():
        assert replace(signed, **{field: value}).recovered != signed.signer, field


def test_settings_are_the_keys_of_the_network_section(signed: NetworkFile) -> None:
    found = replace(signed, rpc_url="http://mine").as_settings()
    assert found["rpc_url"] == "http://mine"
    assert found["matcher_url"] == "https://matcher.example"
    assert "rpc_url" not in signed.as_settings()


@pytest.mark.parametrize(
    "change",
    [
        {"format": "headrace.network/2"},
        {"more": 1},
        {"name": "Not a name"},
        {"name": "../escape"},
        {"contracts": {}},
        {"contracts": {"TaskRegistry": "0x12"}},
        {"chain_id": -1},
        {"revision": 2**63},
        {"parameters": {"unbond_s": 2**32}},
        {"models": {"a": "0x12"}},
        {"signature": "0x1"},
        {"matchers": [{"address": "0x" + "11" * 20, "url": "x" * 501}]},
    ],
)
def test_what_is_no_network_file_is_refused(signed: NetworkFile, change: dict[str, Any]) -> None:
    raw = json.dumps(json.loads(signed.as_json()) | change).encode()
    with pytest.raises(ConfigError, match="no network file"):
        read_network(raw)


@pytest.mark.parametrize("raw", [b"", b"[]", b"[" * 10**5, b"\xff", b" " * (MAX_NETWORK_BYTES + 1)])
def test_what_is_not_even_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ConfigError, match="no network file"):
        read_network(raw)
