"""A gateway over the toy with its pages, a real matcher's answers, and a chain written here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from eth_utils.crypto import keccak

from client.context import open_store
from client.dashboard.sources import sources as dashboard_sources
from client.gateway.gateway import Gateway
from client.gateway.money.keyring import KeyLimits
from client.gateway.money.ledger import DONE, FAILED, RequestEnding, Reservation
from client.orders.matchers import Matchers
from client.orders.orders import PromptBatch
from client.pipeline.pipeline import Match
from client.records.store import ClientStore
from client.sessions.answering import Answered
from core.chain.chain import CONTRACTS, ChainCall
from core.engine.weights.contents import FileFact, TensorFact
from core.engine.weights.manifest import ModelManifest
from core.protocol import types as t
from core.protocol.errors import ContractRefused
from core.protocol.signing import name_hash
from core.protocol.units import NANO
from matcher.planning.planning import PlanBody, PlanDesk
from tests.client.gateway.world import World
from tests.clocks import ManualClock
from tests.town.chain import FakeChain
from tests.town.chain import tx_of as tx_of_block
from tests.town.fleet import MODEL_ID, machine_key, make_spec
from tests.town.matcher import Net, asking
from tests.town.orders import MATCHER, key, leaves_of, prompts, sign_receipt, signed_order
from tests.town.orders import answer_of as scripted_answer
from tests.twins.game import toy

PAYER = "0x" + "01" * 20
JOB = "0x" + "11" * 32  # the one that the toy says it worked for
OLD_JOB, FOREIGN_JOB = "0x" + "12" * 32, "0x" + "13" * 32
OWNER = "0x" + "0f" * 20
JUROR = "0x" + "0a" * 20
JURY_CASE, GAME_CASE = "0x" + "d1" * 32, "0x" + "d2" * 32
MINERS = {number: machine_key(number).address for number in (1, 2, 3, 4)}
USD = 10**6
FIRST_BLOCK = 10
#: The past: events with their arguments. Each is a block, but for those after `+`, which are in
#: the transaction before. `h22` is the hash 0x2222…
PAST = """
ModelRegistry.ModelRegistered id=MODEL registrar=OWNER layers=30 weightsRoot=h22
MinerRegistry.MinerRegistered owner=OWNER operator=MINER-2 stake=500usd
Escrow.Deposited account=PAYER payer=PAYER amount=20usd
TaskRegistry.JobOpened job=OLD_JOB requester=PAYER modelId=MODEL maxNano=2usd
TaskRegistry.JobMatched job=OLD_JOB matcher=MATCHER planHash=haa plan=1:0:10,2:10:20,3:20:30
Escrow.Paid job=OLD_JOB requester=PAYER matcher=MATCHER operators=MINER-1,MINER-2,MINER-3 \
    payNano=0.4usd,0.4usd,0.3usd matcherNano=0.1usd protocolNano=0 refundNano=0.8usd
+ TaskRegistry.JobSettled job=OLD_JOB requester=PAYER paidNano=1.2usd refundedNano=0.8usd \
    withheldNano=0
TaskRegistry.JobOpened job=JOB requester=PAYER modelId=MODEL maxNano=3usd
TaskRegistry.JobMatched job=JOB matcher=MATCHER planHash=hab plan=2:10:20
TaskRegistry.JobMatched job=FOREIGN_JOB matcher=MATCHER planHash=hac plan=1:0:30
JuryArbitrator.DisputeOpened dispute=JURY_CASE job=OLD_JOB accused=OWNER stage=1 challenger=PAYER \
    receiptHash=he1 bond=50usd drawBlock=22
JuryArbitrator.JurorDrawn dispute=JURY_CASE juror=JUROR commitUntil=1800000500
JuryArbitrator.VoteCommitted dispute=JURY_CASE juror=JUROR commitment=hc1
JuryArbitrator.RevealStarted dispute=JURY_CASE revealUntil=1800000600
ToleranceGame.GameOpened id=GAME_CASE job=FOREIGN_JOB accused=OWNER stage=0 right=0 accuser=PAYER \
    requester=PAYER model=MODEL receiptHash=he2 requestsRoot=he3 bond=25usd
ToleranceGame.Accused id=GAME_CASE chunks=4 endsAt=1800001000
ToleranceGame.NodeOpened id=GAME_CASE endsAt=1800001100
ToleranceGame.Picked id=GAME_CASE child=1 endsAt=1800001200
MinerRegistry.Slashed owner=OWNER number=0 amount=100usd burned=50usd
MinerRegistry.Shared owner=OWNER number=0 challenger=PAYER victim=PAYER toChallenger=20usd \
    toVictim=30usd
+ ModelRegistry.ModelPublished publisher=OWNER id=MODEL name=NAME places=PLACES
""".strip().splitlines()
BLOCKS = sum(not line.startswith("+") for line in PAST)
NAMED = {
    "MODEL": MODEL_ID,
    "MATCHER": MATCHER.address,
    "PAYER": PAYER,
    "OWNER": OWNER,
    "JUROR": JUROR,
    "JOB": JOB,
    "OLD_JOB": OLD_JOB,
    "FOREIGN_JOB": FOREIGN_JOB,
    "JURY_CASE": JURY_CASE,
    "GAME_CASE": GAME_CASE,
    "MINER-1": MINERS[1],
    "MINER-2": MINERS[2],
    "MINER-3": MINERS[3],
    "NAME": "smollm2",
    "PLACES": ["hf://maker/smollm2@main", "https://models.example/" + "deep/" * 40],
}
#: The model as its publisher describes it, with a program that judges it six layers at a time.
PROGRAM = replace(toy.Toy.make(toy.LLAMA).program, span_layers=6).to_bytes()
MANIFEST = ModelManifest(
    format="model/1",
    licence="apache-2.0",
    numerics="float32",
    numerics_profile="0x" + keccak(PROGRAM).hex(),
    program=PROGRAM,
    sigma=b"",
    calibration=[],
    files={"model.safetensors": FileFact(5 * 2**20, "0" * 64)},
    tensors={"w": TensorFact("model.safetensors", 0, 4 * 2**20, "F32", (2**20,), "0" * 64)},
)


def tx_of(block: int) -> str:
    """The transaction of a block in which nothing was reorganised."""
    return tx_of_block(f"0x{block:x}")


def _fields(line: str) -> dict[str, Any]:
    pairs = (field.partition("=") for field in line.split())
    return {
        name: _argument(text, NANO if name.lower().endswith("nano") else 1)
        for name, _, text in pairs
    }


def _argument(text: str, times: int = 1) -> Any:
    if text in NAMED:
        return NAMED[text]
    if text.startswith("h"):
        return "0x" + text[1:] * 32
    if ":" in text:
        stages = [map(int, stage.split(":")) for stage in text.split(",")]
        return [{"operator": MINERS[n], "layerFrom": a, "layerTo": b} for n, a, b in stages]
    if "," in text:
        return [_argument(one, times) for one in text.split(",")]
    if text.endswith("usd"):
        return round(float(text.removesuffix("usd")) * USD) * times
    return int(text) * times


class WrittenChain(FakeChain):
    """A chain with `PAST` behind it, for everything that pages ask of one."""

    def __init__(self, now_s: int) -> None:
        super().__init__(ManualClock(now_s), blocks=FIRST_BLOCK)
        names = [*CONTRACTS[:5], "ToleranceGame", "TaskRegistry", "ProgramStore"]
        self.addresses = {n: "0x" + f"{0xC0 + at:02x}" * 20 for at, n in enumerate(names)}
        call = ChainCall("Escrow", "deposit", {"amount": 1}, PAYER)
        for line in PAST:
            event, _, said = line.removeprefix("+ ").partition(" ")
            contract, name = event.split(".")
            if line.startswith("+"):
                self.note(contract, name, _fields(said))
            else:
                self.emit(contract, name, call=call, **_fields(said))
        self.answers = {
            "TestUSD.balanceOf": 80 * USD,
            "Escrow.balanceOf": 15 * USD,
            "Escrow.earnedOf": 400_000,
            "MinerRegistry.operatorsOf": [MINERS[2]],
            "Escrow.feesOf": {"ofMatcher": 0, "ofProtocol": 0},
            "TaskRegistry.jobOf": lambda job, plan_hash: {
                "state": 5 if job == OLD_JOB else 2,
                "tokensIn": 0,
                "tokensOut": 0,
                "layers": 30,
                "embedUnits": 1,
                "headUnits": 8,
            },
            "TaskRegistry.params": {
                "protocolFeeBps": 0,
                "maxJobSeconds": 86400,
                "maxWindowSeconds": 604800,
            },
            "MinerRegistry.minerOf": _fields(
                "stake=400usd leaving=0 leaveAt=0 jailUntil=0 openDisputes=1 machines=1 strikes=1"
                " state=1 operator=MINER-2"
            ),
            "JuryArbitrator.disputeOf": _fields(
                "job=OLD_JOB accused=OWNER stage=1 phase=3 status=1 drawBlock=22 challenger=PAYER"
                " payoutAt=0 panel=3 commits=1 requester=PAYER bond=50usd fee=1usd reveals=0"
                " snapshotBlock=20 votesFault=0 receiptHash=he1"
            )
            | {"phaseEndsAt": now_s + 90},
            "JuryArbitrator.panelOf": [JUROR],
            "ModelRegistry.shapeOf": {"layers": 30, "embedUnits": 1, "headUnits": 8},
            "ToleranceGame.gameOf": _fields(
                "accused=OWNER phase=4 status=1 child=1 accuser=PAYER chunks=4 level=3"
                " requester=PAYER index=0"
            )
            | {"endsAt": now_s + 45},
        }
        self.owners[MINERS[2]] = OWNER
        self.answers |= {
            "ProgramStore.load": "0x" + PROGRAM.hex(),
            "ModelRegistry.registrarOf": OWNER,
        }
        self.models[MODEL_ID] = make_spec(
            dtype=name_hash(MANIFEST.numerics),
            numerics_profile=MANIFEST.numerics_profile,
            manifest_hash=MANIFEST.hash(),
        )

    def unknown(self, contract: str, function: str) -> Any:
        if contract in self.addresses:
            return 7
        raise ContractRefused("the call was refused", error="Unknown", args={})

    async def rpc(self, method: str, *params: Any) -> Any:
        assert method == "eth_getBlockByNumber"
        age_s = 60 * (self.head - int(params[0], 16))
        return {"timestamp": hex(await self.now() - age_s)}

    async def close(self) -> None: ...


class ToldMatcher:
    """A matcher's API as a real one answered it a moment ago. Plans are made for real."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told

    async def status(self) -> Any:
        return self.told["/v1/status"]

    async def models(self) -> Any:
        return self.told["/v1/models"]["models"]

    async def miners(self) -> Any:
        return self.told["/v1/miners"]["miners"]

    async def allocations(self) -> Any:
        return self.told["/v1/allocation"]["allocations"]

    async def routes(self) -> Any:
        return self.told["/v1/routes"]["routes"]

    async def fleet(self, model: str) -> Any:
        return self.told["/v1/fleet"]["document"]

    async def plan(self, question: dict[str, Any]) -> Any:
        found = await PlanDesk(grace_s=120.0).plan(msgspec.convert(question, PlanBody))
        return found["plans"]

    async def close(self) -> None: ...


async def ask_a_matcher(folder: Path) -> dict[str, Any]:
    """What a matcher over three serving machines and one that waits says."""
    net = Net(folder)
    try:
        await net.daemon.prepare()
        net.chain.list_machine("cuda", 24 * 2**10)
        rho = {MINERS[2]: 2.5, MINERS[3]: 11.0}
        net.serve((1, 0, 10), rho_ms=rho, tau_ms_per_layer=0.4)
        net.serve((2, 10, 20), rho_ms={MINERS[3]: 7.25}, tau_ms_per_layer=0.7)
        net.serve((3, 20, 30), tau_ms_per_layer=0.5, active_requests=3)
        net.announce(4)
        await net.tick(3)
        asked = dict.fromkeys(
            f"/v1/{name}" for name in ("status", "models", "miners", "allocation", "routes")
        )
        asked["/v1/fleet"] = {"model": MODEL_ID}
        async with asking(net, swarm=net.swarm.addresses()) as http:
            return {path: (await http.get(path, params=how)).json() for path, how in asked.items()}
    finally:
        for store in net.stores:
            store.close()


@dataclass
class PagesWorld(World):
    """The whole, with pages on."""

    chain: WrittenChain = field(default_factory=lambda: WrittenChain(int(time.time())))

    def __post_init__(self) -> None:
        contracts = {f"network.contracts.{n}": where for n, where in self.chain.addresses.items()}
        self.flags = {
            "gateway.dashboard": "true",
            "gateway.local_reading": "true",
            "network.chain_id": 31337,
            "network.rpc_url": "http://127.0.0.1:1",
            "network.deploy_block": FIRST_BLOCK,
            "network.models.smollm2-135m": MODEL_ID,
            **contracts,
            **self.flags,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        super().__post_init__()
        self.told = asyncio.run(ask_a_matcher(self.folder))

    def _assemble(self) -> Gateway:
        gateway = super()._assemble()
        gateway.payer = PAYER
        matcher: Any = Matchers([(ToldMatcher(self.told), None)])  # type: ignore[list-item]
        gateway.matcher = matcher
        gateway.store = open_store(self.settings)
        _fill(gateway.store)
        return gateway

    @property
    def login_url(self) -> str:
        """A new link at each look."""
        return f"{self.url}/login?token={self.run(self.gateway.logins.new())}"

    def client(self, *, session: bool = False) -> httpx2.Client:
        """A browser's simple sister."""
        http = httpx2.Client(base_url=self.url, timeout=30)
        if session:
            found = httpx2.get(self.login_url, timeout=30)
            assert found.status_code == 303
            http.cookies.update(found.cookies)
        return http

    def fill(self) -> None:
        """Some requests of the last minutes, good and bad, and a key with a budget half used."""
        self.run(self._fill_ledger())

    async def _fill_ledger(self) -> None:
        gateway = self.gateway
        limits = KeyLimits(budget_units=10_000, models=("toy",), requests_per_minute=60)
        key_, _ = await gateway.keys.new("laptop", limits)
        for number in range(6):
            names = f"req_{number:032x}", f"rcpt_{number:032x}", key_.key_id
            path = "/v1/chat/completions"
            opening = Reservation(*names, path, "toy", f"{number}", None, 100)
            await gateway.ledger.reserve(opening)
            answered = Answered(
                JOB,
                number,
                tuple(MINERS[i] for i in (1, 2, 3)),
                12,
                40 + number,
                "stop",
                1_000 + number,
                False,
            )
            ended = RequestEnding(DONE, (answered,), "", 150 + 10 * number, 1_200 + 100 * number)
            await gateway.ledger.end(
                opening.request_id, ended if number else RequestEnding(FAILED, (), "no_route")
            )


def _fill(store: ClientStore) -> None:
    """The job that the toy works for, with two requests and receipts, as if we had opened it."""
    if any(row.job_id == JOB for row in store.jobs()):
        return
    batch = PromptBatch.of(prompts(2))
    operators = [key(60 + i) for i in range(3)]
    plan = tuple(
        t.Stage(operator.address, *span)
        for operator, span in zip(operators, ((0, 2), (2, 5), (5, 6)), strict=True)
    )
    signed = signed_order(batch)
    match = Match(JOB, signed, plan, ("127.0.0.1:1",) * 3, tx_of(FIRST_BLOCK + 9))
    store.add_job("sub", match, batch, int(time.time()) - 120)
    answers = {i: scripted_answer(prompt) for i, prompt in enumerate(batch.prompts)}
    for index, answer in answers.items():
        store.finish_request(JOB, index, answer.tokens, "stop")
    for stage in range(3):
        leaves = leaves_of(answers, stage, 3)
        store.add_receipts(JOB, [sign_receipt(operators[stage], signed.order, plan, stage, leaves)])


def write_chain(patch: pytest.MonkeyPatch, chain: Any) -> None:
    """Have every dashboard that starts from now on read this chain."""
    patch.setattr(dashboard_sources, "chain_of", lambda settings: chain)


@contextmanager
def filled_world(folder: Path, within_s: float = 60) -> Iterator[PagesWorld]:
    """A gateway over the toy, a matcher's answers and a written chain: no page is empty."""
    world = PagesWorld(folder)
    with pytest.MonkeyPatch.context() as patch:
        write_chain(patch, world.chain)
        world.start()
        try:
            world.fill()
            with world.client() as http:
                world.until(lambda: _has_read(http, world), within_s)
            yield world
        finally:
            world.stop()


def _has_read(http: httpx2.Client, world: PagesWorld) -> bool:
    return bool(http.get("/api/explorer").json()["total_events"] == len(world.chain.log))
