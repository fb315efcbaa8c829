"""`miner update` and `miner retire` against real contracts: the chain says what the machine has."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from core.chain.rpc import RpcChain
from core.protocol.errors import ChainUnreachable
from tests.miner.commands.test_registration import nonce, result
from tests.miner.programs import Town

pytestmark = pytest.mark.chain

MIB = 2**20


@pytest.fixture
def registered(town: Town, capsys: pytest.CaptureFixture[str]) -> Town:
    """A machine whose owner allows it 300 MiB, of which the chain says 200."""
    assert town.miner("register", "--stake", "500usd", "--yes") == 0
    assert town.miner("update", "--memory-limit", "300MiB", "--yes", "--json") == 0
    assert result(capsys)["result"]["next"] == "miner update (for the chain), then miner start"
    return town


def listed(town: Town, place: int) -> tuple[int, int]:
    """State (1: active, 2: retired) and MiB of an entry."""
    entry = town.read("MinerRegistry", "machineOf", town.owner.address, place)
    return entry["state"], entry["vramMiB"]


def test_what_differs_is_corrected_and_then_nothing_is_sent(
    registered: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    before = nonce(registered)
    assert registered.miner("update", "--dry-run", "--json") == 0
    summary = result(capsys)["result"]["summary"]
    assert summary["memory"] == "200MiB → 300MiB"
    assert "in 2 transactions, at most" in summary["gas"]
    assert nonce(registered) == before

    assert registered.miner("update", "--yes", "--json") == 0
    done = result(capsys)["result"]
    assert done["changed"] == {"memory": ["200MiB", "300MiB"]}
    assert done["machine"] == {"number": 1, "class": "cpu", "memoryBytes": 300 * MIB}
    assert (len(done["transactions"]), done["others"]) == (2, [])
    assert (done["miner"], done["next"]) == ("it does not run", "miner start")
    assert (listed(registered, 0), listed(registered, 1)) == ((2, 200), (1, 300))

    before = nonce(registered)
    assert registered.miner("update", "--yes", "--json") == 0
    done = result(capsys)["result"]
    assert (done["changed"], done["transactions"]) == ({}, [])
    assert nonce(registered) == before
    assert registered.miner("update") == 0
    assert "nothing was sent" in capsys.readouterr().out


def test_a_correction_that_is_cut_off_lists_the_machine_twice_and_is_ended_by_hand(
    registered: Town, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transact = RpcChain.transact

    async def cut(chain: RpcChain, signer: Any, contract: str, function: str, *args: Any) -> Any:
        if function == "retireMachine":
            raise ChainUnreachable("no answer", "the line is cut")
        return await transact(chain, signer, contract, function, *args)

    with monkeypatch.context() as patched:
        patched.setattr(RpcChain, "transact", cut)
        assert registered.miner("update", "--yes", "--json") == 3
    error = result(capsys)["error"]
    assert "as it is, and still as machine 0 (cpu, 200 MiB)" in error["state"]
    assert error["next"] == "miner retire --machine 0"
    assert (listed(registered, 0), listed(registered, 1)) == ((1, 200), (1, 300))

    assert registered.miner("update", "--yes", "--json") == 0
    done = result(capsys)["result"]
    assert (done["transactions"], done["machine"]["number"]) == ([], 1)
    assert done["others"] == [{"number": 0, "class": "cpu", "memoryBytes": 200 * MIB}]
    assert "miner retire --machine" in done["next"]

    assert registered.miner("retire", "--yes", "--json") == 2
    assert "0 (cpu, 200 MiB); 1 (cpu, 300 MiB)" in result(capsys)["error"]["why"]
    assert registered.miner("retire", "--machine", "7", "--yes", "--json") == 2
    capsys.readouterr()
    assert registered.miner("retire", "--machine", "0", "--yes") == 0
    assert "1: cpu, 300 MiB" in capsys.readouterr().out
    assert (listed(registered, 0), listed(registered, 1)) == ((2, 200), (1, 300))


def test_of_several_machines_the_one_that_is_named_is_corrected(
    registered: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    async def another(chain: RpcChain) -> None:
        entry = ("0x63756461", 81_920, 1, "0x" + "00" * 32)
        await chain.transact(registered.owner, "MinerRegistry", "registerMachine", *entry)

    registered.with_chain(another)
    before = nonce(registered)
    assert registered.miner("update", "--yes", "--json") == 2
    error = result(capsys)["error"]
    assert "0 (cpu, 200 MiB); 1 (cuda, 81,920 MiB)" in error["why"]
    assert error["next"] == "name one: --machine NUMBER"
    assert nonce(registered) == before
    assert registered.miner("update", "--machine", "0", "--yes", "--json") == 0
    assert result(capsys)["result"]["others"][0]["class"] == "cuda"
    assert (listed(registered, 0)[0], listed(registered, 1)[0]) == (2, 1)
    assert listed(registered, 2) == (1, 300)
    assert registered.miner("update", "--machine", "0", "--max-batch", "3", "--yes") == 2


def test_a_machine_is_retired_and_announced_again_while_its_miner_runs(
    registered: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = registered.home / "state" / "miner" / "devnet-alice-operator"
    folder.mkdir(parents=True, exist_ok=True)
    running = {"pid": os.getpid(), "url": "", "token": "", "operator": "", "endpoint": ""}
    (folder / "daemon.json").write_text(json.dumps(running))
    assert registered.miner("retire", "--dry-run", "--json") == 0
    assert "gas" in result(capsys)["result"]["summary"]
    assert listed(registered, 0) == (1, 200)
    assert registered.miner("retire", "--yes", "--json") == 0
    done = result(capsys)["result"]
    assert f"process {os.getpid()} goes on" in done["miner"]
    assert listed(registered, 0) == (2, 200)
    assert registered.read("MinerRegistry", "minerOf", registered.owner.address)["state"] == 1
    assert registered.miner("retire", "--yes", "--json") == 2
    assert "miner update" in result(capsys)["error"]["next"]

    assert registered.miner("update", "--yes", "--json") == 0
    done = result(capsys)["result"]
    assert done["changed"]["class"] == ["not listed", "cpu"]
    assert len(done["transactions"]) == 1
    assert done["next"] == "miner drain, then miner start, to take it up"
    assert listed(registered, 0) == (1, 300)


def test_who_is_not_registered_is_leaving_or_has_no_gas_is_told_what_to_do(
    town: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("update", "retire"):
        assert town.miner(command, "--yes", "--json") == 2
        assert "miner register" in result(capsys)["error"]["next"]
    assert town.miner("register", "--stake", "500usd", "--yes") == 0
    assert town.miner("update", "--memory-limit", "300MiB", "--yes") == 0
    town.with_chain(lambda chain: chain.rpc("anvil_setBalance", town.owner.address, "0x10"))
    capsys.readouterr()
    assert town.miner("update", "--yes", "--json") == 5
    assert result(capsys)["error"]["code"] == "E-FUNDS-02"
    town.with_chain(lambda chain: chain.rpc("anvil_setBalance", town.owner.address, hex(10**19)))
    assert town.miner("withdraw", "--yes") == 0
    capsys.readouterr()
    assert town.miner("update", "--yes", "--json") == 2
    assert "withdraw --cancel" in result(capsys)["error"]["next"]
