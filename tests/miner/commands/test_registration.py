"""`miner register`, `stake`, `withdraw` against real contracts, and what is refused before anything
is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client.orders.orders import Allowance, OrderTerms, make_open_order
from core.chain.rpc import RpcChain
from core.keys.keystore import Keystore
from core.money import pricing
from core.protocol import signing
from core.protocol import types as t
from core.protocol.network_file import USD, Parameters
from core.protocol.units import NANO, format_token
from tests.accounts import devnet_accounts
from tests.conftest import Anvil
from tests.miner.programs import Town

pytestmark = pytest.mark.chain


def result(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON document of the last command."""
    document: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return document


def balance(town: Town) -> int:
    return int(town.read("TestUSD", "balanceOf", town.owner.address))


def nonce(town: Town) -> int:
    return town.with_chain(lambda chain: chain.nonce(town.owner.address))


def test_a_machine_registers_adds_stake_and_leaves_with_all_of_it(
    town: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    assert town.miner("register", "--stake", "500usd", "--yes", "--json") == 0
    done = result(capsys)["result"]
    operator = done["operator"]
    assert done["operatorWallet"] == "alice-operator"
    assert (
        Keystore(town.home / "keys").unlock("alice-operator", "devnet", chain_id=31337).address
        == operator
    )
    assert town.read("MinerRegistry", "ownerOf", operator) == town.owner.address
    assert town.read("MinerRegistry", "canWork", operator, 500 * USD)
    machine = town.read("MinerRegistry", "machineOf", town.owner.address, 0)
    assert machine["vramMiB"] == 200
    assert machine["bandwidthMBps"] > 0
    assert balance(town) == 100 * USD

    assert town.miner("stake", "add", "50usd", "--yes", "--json") == 0
    assert result(capsys)["result"]["stake"] == "550usd"
    assert town.miner("register", "--stake", "100usd", "--yes", "--json") == 2
    assert "registered already" in result(capsys)["error"]["what"]

    assert town.miner("withdraw", "500usd", "--yes", "--json") == 6
    assert result(capsys)["error"]["details"]["error"] == "StakeTooLow"
    assert town.miner("withdraw", "--yes", "--json") == 0
    assert 7100 < result(capsys)["result"]["readyInS"] <= 7200
    assert not town.read("MinerRegistry", "canWork", operator, 0)

    before = nonce(town)
    assert town.miner("withdraw", "--yes", "--json") == 6
    refused = result(capsys)["error"]
    assert refused["details"]["error"] == "ExitNotReady"
    assert "miner withdraw" in refused["next"]
    assert nonce(town) == before, "it is refused before anything is sent"
    town.warp(7200)
    assert town.miner("withdraw", "--yes", "--json") == 0
    assert balance(town) == 600 * USD
    assert town.miner("stake", "status", "--json") == 0
    assert result(capsys)["result"]["state"] == "Exited"
    assert town.miner("withdraw", "--yes", "--json") == 2


def test_a_withdrawal_can_be_taken_back(town: Town, capsys: pytest.CaptureFixture[str]) -> None:
    assert town.miner("register", "--stake", "500usd", "--yes") == 0
    assert town.miner("withdraw", "100usd", "--yes", "--json") == 0
    assert result(capsys)["result"]["leaving"] == "100usd"
    assert town.miner("withdraw", "--cancel", "--yes", "--json") == 0
    assert result(capsys)["result"]["stake"] == "500usd"


@pytest.mark.parametrize(
    ("stake", "exit_code", "code", "have", "need", "short_by"),
    [
        ("50usd", 5, "E-FUNDS-04", 50 * USD, 100 * USD, 50 * USD),
        ("700usd", 5, "E-FUNDS-01", 600 * USD, 700 * USD, 100 * USD),
    ],
)
def test_too_little_stake_or_money_names_the_numbers_and_sends_nothing(
    town: Town,
    capsys: pytest.CaptureFixture[str],
    stake: str,
    exit_code: int,
    code: str,
    have: int,
    need: int,
    short_by: int,
) -> None:
    before = nonce(town)
    assert town.miner("register", "--stake", stake, "--yes", "--json") == exit_code
    error = result(capsys)["error"]
    assert error["code"] == code
    found = {name: error["details"][name] for name in ("have", "need", "short_by", "address")}
    assert found == {
        "have": str(have),
        "need": str(need),
        "short_by": str(short_by),
        "address": town.owner.address,
    }
    assert error["details"]["fix"]
    assert nonce(town) == before
    assert not (town.home / "keys" / "alice-operator").exists()


def test_an_empty_wallet_cannot_pay_the_fee(town: Town, capsys: pytest.CaptureFixture[str]) -> None:
    town.with_chain(lambda chain: chain.rpc("anvil_setBalance", town.owner.address, "0x10"))
    assert town.miner("register", "--stake", "500usd", "--yes", "--json") == 5
    error = result(capsys)["error"]
    assert error["code"] == "E-FUNDS-02"
    assert error["details"]["have"] == "16"


def test_an_amount_without_a_unit_a_question_without_a_terminal_and_a_wrong_password(
    town: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    assert town.miner("register", "--stake", "500", "--yes", "--json") == 2
    assert result(capsys)["error"]["code"] == "E-AMOUNT-01"
    assert town.miner("register", "--stake", "500usd", "--json") == 2
    assert result(capsys)["error"]["code"] == "E-USAGE-02"
    wrong = town.home / "wrong"
    wrong.write_text("guess\n")
    wrong.chmod(0o600)
    arguments = ("--stake", "500usd", "--yes", "--json", "--password-file", str(wrong))
    assert town.miner("register", *arguments) == 4
    assert result(capsys)["error"]["code"] == "E-WALLET-02"
    assert balance(town) == 600 * USD


def test_a_dry_run_shows_the_summary_and_changes_nothing(
    town: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    before = nonce(town)
    assert town.miner("register", "--stake", "500usd", "--dry-run") == 0
    shown = capsys.readouterr().err
    for part in ("owner", "operator", "500usd", "at risk", "fee", "2h to leave"):
        assert part in shown, part
    assert nonce(town) == before
    assert not (town.home / "keys" / "alice-operator").exists()


def test_the_operator_key_can_be_changed_and_the_old_one_is_never_free_again(
    town: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    assert town.miner("register", "--stake", "500usd", "--yes", "--json") == 0
    old = result(capsys)["result"]["operator"]
    assert town.miner("rotate-operator", "second", "--yes", "--json") == 0
    new = result(capsys)["result"]["operator"]
    assert town.read("MinerRegistry", "minerOf", town.owner.address)["operator"] == new
    assert town.read("MinerRegistry", "ownerOf", old) == town.owner.address
    assert not town.read("MinerRegistry", "canWork", old, 0)
    assert 'operator = "second"' in (town.home / "config" / "config.toml").read_text()


def test_there_is_nothing_to_withdraw_or_to_unjail_for_a_newcomer(
    town: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    assert town.miner("withdraw", "--credits", "--yes", "--json") == 2
    assert town.miner("withdraw", "--yes", "--json") == 2
    assert town.miner("unjail", "--yes", "--json") == 2
    assert town.miner("stake", "add", "5usd", "--yes", "--json") == 2
    assert town.miner("status", "--json") == 3
    assert "not running" in result(capsys)["error"]["what"]


async def paid_job(chain: RpcChain, town: Town, operator: str, nonce: int) -> int:
    """A batch of one stage that its matcher settles; what its operator got, in nano units."""
    requester, matcher = devnet_accounts()[5], town.deployer
    spec = msgspec.convert(await chain.read("ModelRegistry", "specOf", town.model_id), t.ModelSpec)
    offer = OrderTerms(
        price_in=10**9,
        price_out=10**9,
        matcher=matcher.address,
        matcher_fee_bps=100,
        opening_fee=0,
        min_stake=0,
        deadline=await chain.now() + 600,
        window=60,
        auditor=t.ZERO_ADDRESS,
        arbitrator=town.addresses["JuryArbitrator"],
        demands=t.Terms.of(1),
    )
    order = make_open_order(
        Allowance(8, 10_000, 10_000), town.model_id, spec, offer, requester.address, nonce
    )
    order = msgspec.structs.replace(order, input_root="0x" + "01" * 32)
    plan = [t.Stage(operator, 0, spec.layers)]
    ack = t.Ack(
        signing.order_hash(order), signing.plan_hash(plan), t.ZERO_HASH, 1_001, 2_003 + nonce
    )
    usd = pricing.max_amount(order, spec)
    await chain.transact(town.deployer, "TestUSD", "mint", requester.address, usd)
    await chain.transact(requester, "TestUSD", "approve", town.addresses["Escrow"], usd)
    await chain.transact(requester, "Escrow", "deposit", usd)
    signature = signing.sign(requester, chain.domain, order)
    await chain.transact(matcher, "TaskRegistry", "openMatched", order, signature, plan)
    signature = signing.sign(requester, chain.domain, ack)
    await chain.transact(matcher, "TaskRegistry", "settleAck", order, ack, signature, plan)
    fee_bps = (await chain.read("TaskRegistry", "params"))["protocolFeeBps"]
    counts = ack.tokens_in, ack.tokens_out
    return pricing.split(order, plan, spec, *counts, protocol_fee_bps=fee_bps).pays[0]


def test_what_a_rotated_key_earned_is_seen_and_collected_with_what_the_new_one_earned(
    own_anvil: Callable[..., Anvil],
    tmp_path: Path,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    for name in ("HEADRACE_PASSWORD_FILE", "ETH_PASSWORD", "ETH_RPC_URL", "ETH_KEYSTORE"):
        monkeypatch.delenv(name, raising=False)
    town = Town(own_anvil().rpc_url, home, Parameters())
    town.build(owner_usd=600, model=model_dir)
    assert town.miner("register", "--stake", "500usd", "--yes", "--json") == 0
    old = result(capsys)["result"]["operator"]
    pays = [town.with_chain(lambda chain: paid_job(chain, town, old, 1))]
    assert town.miner("rotate-operator", "second", "--yes", "--json") == 0
    new = result(capsys)["result"]["operator"]
    pays.append(town.with_chain(lambda chain: paid_job(chain, town, new, 2)))
    assert pays[0] % NANO and pays[1] % NANO, "each key keeps its part of a unit"
    due = [pay // NANO for pay in pays]

    assert town.miner("earnings", "--json") == 0
    books = result(capsys)["result"]
    assert books["paid"] == format_token(sum(pays) // NANO)
    assert (books["toClaim"], books["collected"]) == (format_token(sum(due)), "0usd")
    assert [row["jobs"] for row in books["rows"]] == [2]
    assert town.miner("stake", "status", "--json") == 0
    assert result(capsys)["result"]["credit"] == format_token(sum(due))

    before = balance(town)
    assert town.miner("claim", "--yes", "--json") == 0
    assert result(capsys)["result"]["withdrawn"] == format_token(sum(due))
    assert balance(town) == before + sum(due)
    assert town.miner("earnings", "--json") == 0
    books = result(capsys)["result"]
    assert (books["toClaim"], books["collected"]) == ("0usd", format_token(sum(due)))
    assert books["paid"] == format_token(sum(pays) // NANO), "what was paid stays in the books"
    assert town.miner("claim", "--yes", "--json") == 2
