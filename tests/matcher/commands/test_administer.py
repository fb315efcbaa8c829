"""Does an owner do what the contracts let it, told what it means, and nobody else?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from core.chain.rpc import RpcChain
from core.chain.sending import TransactionDraft
from core.keys.signer import Signer
from core.protocol.network_file import read_network
from tests.conftest import CHAIN_ID
from tests.matcher.commands.office import FEES, GUARDIAN, OWNER, Office, parameters_file

pytestmark = pytest.mark.chain
T = TypeVar("T")
STRANGER = "0x" + "77" * 20
DAY_S = 86_400


class Riverside:
    """A network that was deployed, signed and joined, and its owner's commands."""

    def __init__(self, office: Office, signers: list[Signer]) -> None:
        self.office = office
        file = office.write(parameters_file(signers))
        code, made = office.run("network", "deploy", file, "--token", "new")
        assert code == 0, made
        self.file = made["file"]
        assert office.run("network", "sign", self.file, wallet="owner")[0] == 0
        assert office.run("network", "join", self.file)[0] == 0
        self.contracts = made["contracts"]

    def run(self, *words: str, wallet: str = "owner") -> tuple[int, Any]:
        return self.office.run("network", *words, "--network", "riverside", wallet=wallet)

    def ask(self, work: Callable[[RpcChain], Awaitable[T]]) -> T:
        async def asked() -> T:
            chain = RpcChain(self.office.rpc_url, CHAIN_ID, self.contracts)
            try:
                return await work(chain)
            finally:
                await chain.close()

        return asyncio.run(asked())

    def read(self, contract: str, function: str, *args: Any) -> Any:
        return self.ask(lambda chain: chain.read(contract, function, *args))

    def both(self, function: str) -> set[str]:
        return {self.read(name, function) for name in ("MinerRegistry", "TaskRegistry")}

    def skip(self, seconds: int) -> None:
        async def later(chain: RpcChain) -> None:
            await chain.rpc("evm_increaseTime", seconds)
            await chain.rpc("evm_mine")

        self.ask(later)


@pytest.fixture
def riverside(office: Office, signers: list[Signer]) -> Riverside:
    return Riverside(office, signers)


def test_an_arbitrator_is_proposed_and_added_after_its_delay(
    riverside: Riverside, signers: list[Signer]
) -> None:
    game = riverside.contracts["ToleranceGame"]  # another network's would do: it has a clock
    code, refused = riverside.run("add-arbitrator", game)
    assert code == 2 and "not proposed" in refused["why"]
    code, done = riverside.run("propose-arbitrator", game)
    assert (code, done[0]["function"]) == (0, "proposeArbitrator")
    code, refused = riverside.run("add-arbitrator", game)
    assert code == 2 and "ends at" in refused["why"]
    riverside.skip(30 * DAY_S)
    code, refused = riverside.run("add-arbitrator", game)
    assert code == 2 and "nothing to do" in refused["what"], "it is one from the start"

    code, done = riverside.run("remove-arbitrator", game)
    assert (code, done[0]["function"]) == (0, "removeArbitrator")
    assert riverside.run("remove-arbitrator", game)[0] == 2, "it is none any more"
    code, refused = riverside.office.run("network", "check", riverside.file)
    assert code == 9 and "arbitrators" in str(refused), "the file still names it"
    code, refused = riverside.run("add-arbitrator", game)
    assert code == 2 and "not proposed" in refused["why"], "it waits as any other does"
    assert riverside.run("propose-arbitrator", game)[0] == 0
    riverside.skip(30 * DAY_S)
    assert riverside.run("add-arbitrator", game)[0] == 0
    assert riverside.office.run("network", "check", riverside.file)[0] == 0

    stranger = signers[9].address
    assert riverside.run("propose-arbitrator", stranger)[0] == 0
    riverside.skip(30 * DAY_S)
    code, refused = riverside.run("add-arbitrator", stranger)
    assert code != 0, "a plain key is no arbitrator"


def test_what_is_meant_is_said_before_it_is_asked(
    riverside: Riverside, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rehearsed = riverside.run("propose-arbitrator", STRANGER, "--dry-run")
    assert code == 0
    assert rehearsed["summary"]["delay"].startswith("30d")
    assert "begin to leave within" in rehearsed["summary"]["means"]
    assert riverside.read("MinerRegistry", "arbitratorReadyAt", STRANGER) == 0


def test_fees_fall_and_go_elsewhere(riverside: Riverside, signers: list[Signer]) -> None:
    code, refused = riverside.run("fees", "--bps", "51")
    assert code == 2 and "only falls" in refused["why"]
    code, done = riverside.run("fees", "--bps", "20", "--to", STRANGER)
    assert code == 0
    assert [one["function"] for one in done] == ["setFeeRecipient", "lowerProtocolFee"]
    params = riverside.read("TaskRegistry", "params")
    assert (params["protocolFeeBps"], int(params["feeRecipient"], 16)) == (20, int(STRANGER, 16))
    assert riverside.run("fees", "--bps", "20")[1]["what"] == "there is nothing to do"
    assert signers[FEES].address != params["feeRecipient"]


def test_the_guardian_pauses_and_resumes_both_registries(riverside: Riverside) -> None:
    code, refused = riverside.run("pause", "3d")
    assert code == 9 and "guardian is" in refused["why"], "the owner is not the guardian"
    code, done = riverside.run("pause", "3d", wallet="guardian")
    assert (code, {one["contract"] for one in done}) == (0, {"MinerRegistry", "TaskRegistry"})
    assert min(riverside.both("pausedUntil")) > riverside.ask(lambda chain: chain.now())
    assert riverside.run("pause", "3d", wallet="guardian")[1]["what"] == "there is nothing to do"
    assert riverside.run("resume", wallet="guardian")[0] == 0
    assert max(riverside.both("pausedUntil")) <= riverside.ask(lambda chain: chain.now())
    code, refused = riverside.run("pause", "1d", wallet="guardian")
    assert (code, refused["code"]) == (6, "E-CONTRACT-01"), "it rests for thirty days"
    code, refused = riverside.run("pause", "8d", wallet="guardian")
    assert code == 6


def test_a_network_is_handed_over_in_two_steps_and_its_file_follows(
    riverside: Riverside, signers: list[Signer]
) -> None:
    new = signers[GUARDIAN].address  # the one other wallet of this home
    code, refused = riverside.run("set-owner", new, wallet="guardian")
    assert code == 9 and signers[OWNER].address in refused["why"]
    assert riverside.run("accept-owner", wallet="guardian")[0] == 2, "nothing was offered"
    assert riverside.run("set-owner", new)[0] == 0
    assert riverside.both("owner") == {signers[OWNER].address}
    assert riverside.run("accept-owner")[0] == 9, "the old owner was offered nothing"
    assert riverside.run("accept-owner", wallet="guardian")[0] == 0
    assert riverside.both("owner") == {new}

    code, refused = riverside.office.run("network", "check", riverside.file)
    assert code == 9 and "owner of TaskRegistry" in refused["why"]
    old = signers[OWNER].address
    text = Path(riverside.file).read_text().replace(f'"owner": "{old}"', f'"owner": "{new}"')
    Path(riverside.file).write_text(text)
    sign = ("network", "sign", riverside.file, "--new")
    assert riverside.office.run(*sign, wallet="owner")[0] == 9
    assert riverside.office.run(*sign, wallet="guardian")[0] == 0
    assert read_network(Path(riverside.file).read_bytes()).revision == 2
    assert riverside.office.run("network", "check", riverside.file)[0] == 0


def test_a_hand_over_that_stopped_half_way_is_repeated(
    riverside: Riverside, signers: list[Signer]
) -> None:
    async def half(chain: RpcChain) -> None:
        await chain.transact(
            signers[OWNER], "MinerRegistry", "transferOwnership", signers[GUARDIAN].address
        )
        await chain.transact(signers[GUARDIAN], "MinerRegistry", "acceptOwnership")

    riverside.ask(half)
    code, done = riverside.run("guardian", STRANGER)
    assert code == 9, "one registry is another owner's: nothing is sent"
    assert riverside.both("guardian") == {signers[GUARDIAN].address}

    async def offer(chain: RpcChain) -> None:
        await chain.transact(
            signers[OWNER], "TaskRegistry", "transferOwnership", signers[GUARDIAN].address
        )

    riverside.ask(offer)
    code, done = riverside.run("accept-owner", wallet="guardian")
    assert (code, [one["contract"] for one in done]) == (0, ["TaskRegistry"])


def test_calldata_is_printed_for_who_signs_elsewhere(
    riverside: Riverside, signers: list[Signer]
) -> None:
    """Sent by hand, as a multisig would, it does what the command would have done."""
    code, calls = riverside.run("guardian", STRANGER, "--calldata", wallet="nobody")
    assert code == 0
    assert {one["sender"] for one in calls} == {signers[OWNER].address}
    assert {one["tx"] for one in calls} == {""}
    assert riverside.both("guardian") == {signers[GUARDIAN].address}

    async def send(chain: RpcChain) -> None:
        for one in calls:
            await chain._sender.send(
                signers[OWNER], TransactionDraft(one["to"], one["data"], 100_000, "by hand")
            )

    riverside.ask(send)
    assert {int(one, 16) for one in riverside.both("guardian")} == {int(STRANGER, 16)}
