"""A gateway over the toy with its pages: a real matcher's answers about a small fleet, and a chain whose past is written here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from client.context import open_store
from client.dashboard.sources import sources as dashboard_sources
from client.gateway.gateway import Gateway
from client.gateway.money.keyring import KeyLimits
from client.gateway.money.ledger import DONE, FAILED, RequestEnding, Reservation
from client.orders.orders import PromptBatch
from client.pipeline.pipeline import Match
from client.records.store import ClientStore
from client.sessions.answering import Answered
from core.chain.chain import ChainCall, ChainEvent
from core.protocol import types as t
from core.protocol.errors import ContractRefused
from core.runtime.metrics import Metrics
from matcher.api.api import make_app as make_matcher
from matcher.planning.planning import PlanBody, PlanDesk
from tests.client.gateway.world import World
from tests.town.fleet import MODEL_ID, machine_key
from tests.town.matcher import Net
from tests.town.orders import MATCHER, key, leaves_of, prompts, sign_receipt, signed_order
from tests.town.orders import answer_of as scripted_answer

PAYER = "0x" + "01" * 20
JOB = "0x" + "11" * 32  # the one that the toy says it worked for
OLD_JOB, FOREIGN_JOB = "0x" + "12" * 32, "0x" + "13" * 32
OWNER = "0x" + "0f" * 20
JUROR = "0x" + "0a" * 20
JURY_CASE, GAME_CASE = "0x" + "d1" * 32, "0x" + "d2" * 32
MINERS = {number: machine_key(number).address for number in (1, 2, 3, 4)}
USD = 10**6
FIRST_BLOCK = 10
#: The past: (contract, event, arguments), one block each.
PAST: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ModelRegistry", "ModelRegistered", {"id": MODEL_ID, "registrar": OWNER, "layers": 30, "weightsRoot": "0x" + "22" * 32}),
    ("MinerRegistry", "MinerRegistered", {"owner": OWNER, "operator": MINERS[2], "stake": 500 * USD}),
    ("Escrow", "Deposited", {"account": PAYER, "payer": PAYER, "amount": 20 * USD}),
    ("Escrow", "JobLocked", {"job": OLD_JOB, "requester": PAYER, "amount": 2 * USD}),
    ("TaskRegistry", "JobMatched", {"job": OLD_JOB, "matcher": MATCHER.address, "planHash": "0x" + "aa" * 32, "plan": [{"operator": MINERS[1], "layerFrom": 0, "layerTo": 10}, {"operator": MINERS[2], "layerFrom": 10, "layerTo": 20}, {"operator": MINERS[3], "layerFrom": 20, "layerTo": 30}]}),
    ("Escrow", "Credited", {"account": OWNER, "amount": 400_000, "source": OLD_JOB}),
    ("Escrow", "JobReleased", {"job": OLD_JOB, "requester": PAYER, "refunded": 800_000, "paid": 1_200_000}),
    ("TaskRegistry", "JobSettled", {"job": OLD_JOB, "paid": 1_200_000, "refunded": 800_000, "withheld": 0}),
    ("Escrow", "JobLocked", {"job": JOB, "requester": PAYER, "amount": 3 * USD}),
    ("TaskRegistry", "JobMatched", {"job": JOB, "matcher": MATCHER.address, "planHash": "0x" + "ab" * 32, "plan": [{"operator": MINERS[2], "layerFrom": 10, "layerTo": 20}]}),
    ("TaskRegistry", "JobMatched", {"job": FOREIGN_JOB, "matcher": MATCHER.address, "planHash": "0x" + "ac" * 32, "plan": [{"operator": MINERS[1], "layerFrom": 0, "layerTo": 30}]}),
    ("JuryArbitrator", "DisputeOpened", {"dispute": JURY_CASE, "job": OLD_JOB, "accused": OWNER, "stage": 1, "challenger": PAYER, "receiptHash": "0x" + "e1" * 32, "bond": 50 * USD, "drawBlock": 22}),
    ("JuryArbitrator", "JurorDrawn", {"dispute": JURY_CASE, "juror": JUROR, "commitUntil": 1_800_000_500}),
    ("JuryArbitrator", "VoteCommitted", {"dispute": JURY_CASE, "juror": JUROR, "commitment": "0x" + "c1" * 32}),
    ("JuryArbitrator", "RevealStarted", {"dispute": JURY_CASE, "revealUntil": 1_800_000_600}),
    ("ToleranceGame", "GameOpened", {"id": GAME_CASE, "job": FOREIGN_JOB, "accused": OWNER, "stage": 0, "accuser": PAYER, "requester": PAYER, "model": MODEL_ID, "receiptHash": "0x" + "e2" * 32, "requestsRoot": "0x" + "e3" * 32, "bond": 25 * USD}),
    ("ToleranceGame", "Accused", {"id": GAME_CASE, "chunks": 4, "endsAt": 1_800_001_000}),
    ("ToleranceGame", "NodeOpened", {"id": GAME_CASE, "endsAt": 1_800_001_100}),
    ("ToleranceGame", "Picked", {"id": GAME_CASE, "child": 1, "endsAt": 1_800_001_200}),
    ("MinerRegistry", "Slashed", {"owner": OWNER, "challenger": PAYER, "victim": PAYER, "amount": 100 * USD, "toChallenger": 50 * USD, "toVictim": 25 * USD, "burned": 25 * USD}),
)  # fmt: skip


def tx_of(block: int) -> str:
    return "0x" + f"{block:064x}"


class WrittenChain:
    """A chain with `PAST` behind it, for everything that pages ask of one."""

    chain_id = 31337
    addresses = {
        name: "0x" + f"{0xC0 + position:02x}" * 20
        for position, name in enumerate(
            ("TestUSD", "ModelRegistry", "MinerRegistry", "Escrow", "JuryArbitrator", "ToleranceGame", "TaskRegistry")
        )
    }  # fmt: skip

    def __init__(self, now_s: int) -> None:
        self.now_s = now_s
        self.past = list(PAST)
        self.fork = 0

    async def block_number(self) -> int:
        return FIRST_BLOCK + len(self.past) - 1

    async def block_hash(self, number: int) -> str | None:
        if not 0 <= number <= await self.block_number():
            return None
        return "0x" + f"{number + (self.fork << 32 if number >= self.fork > 0 else 0):064x}"

    async def events(self, first: int, last: int) -> list[ChainEvent]:
        found = []
        for block in range(max(first, FIRST_BLOCK), min(last, await self.block_number()) + 1):
            contract, name, args = self.past[block - FIRST_BLOCK]
            found.append(
                ChainEvent(contract, name, args, block, f"0x{block:064x}", tx_of(block), 0)
            )
        return found

    async def rpc(self, method: str, *params: Any) -> Any:
        assert method == "eth_getBlockByNumber"
        head = await self.block_number()
        return {"timestamp": hex(self.now_s - 60 * (head - int(params[0], 16)))}

    async def now(self) -> int:
        return self.now_s

    async def balance_wei(self, address: str) -> int:
        return 2 * 10**18

    async def call_of(self, tx_hash: str) -> ChainCall | None:
        return ChainCall("Escrow", "deposit", {"amount": 1}, PAYER)

    async def close(self) -> None: ...

    async def read(self, contract: str, function: str, *args: Any) -> Any:
        match contract, function:
            case "TestUSD", "balanceOf":
                return 80 * USD
            case "Escrow", "balanceOf":
                return 15 * USD
            case _, "creditOf":
                return 400_000
            case "Escrow", "thawOf":
                return {"amount": 0, "readyAt": 0}
            case "Escrow", "lockOf":
                return {"requester": PAYER, "amount": 3 * USD if args[0] == JOB else 0}
            case "TaskRegistry", "jobOf":
                return {"state": {OLD_JOB: 5, JOB: 2}.get(args[0], 2)}
            case "MinerRegistry", "ownerOf":
                return OWNER if args[0] == MINERS[2] else t.ZERO_ADDRESS
            case "MinerRegistry", "minerOf":
                return {
                    "operator": MINERS[2], "stake": 400 * USD, "leaving": 0, "leaveAt": 0,
                    "jailUntil": 0, "openDisputes": 1, "machines": 1, "strikes": 1, "state": 1,
                }  # fmt: skip
            case "ModelRegistry", "shapeOf":
                return {"layers": 30, "embedUnits": 1, "headUnits": 8}
            case "JuryArbitrator", "disputeOf":
                return {
                    "job": OLD_JOB, "accused": OWNER, "stage": 1, "phase": 3, "status": 1,
                    "drawBlock": 22, "challenger": PAYER, "phaseEndsAt": self.now_s + 90, "payoutAt": 0,
                    "panel": 3, "commits": 1, "requester": PAYER, "bond": 50 * USD, "fee": USD,
                    "snapshotBlock": 20, "reveals": 0, "votesFault": 0, "receiptHash": "0x" + "e1" * 32,
                }  # fmt: skip
            case "JuryArbitrator", "panelOf":
                return [JUROR]
            case "ToleranceGame", "gameOf":
                return {
                    "accused": OWNER, "phase": 4, "status": 1, "endsAt": self.now_s + 45, "child": 1,
                    "accuser": PAYER, "chunks": 4, "level": 3, "requester": PAYER, "index": 0,
                }  # fmt: skip
            case "TaskRegistry", "params":
                return {"protocolFeeBps": 0, "maxJobSeconds": 86400, "maxWindowSeconds": 604800}
            case _ if contract in self.addresses:
                return 7
        raise ContractRefused("the call was refused", error="Unknown", args={})


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
        rho = {MINERS[2]: 2.5, MINERS[3]: 11.0}
        net.serve((1, 0, 10), rho_ms=rho, tau_ms_per_layer=0.4)
        net.serve((2, 10, 20), rho_ms={MINERS[3]: 7.25}, tau_ms_per_layer=0.7)
        net.serve((3, 20, 30), tau_ms_per_layer=0.5, active_requests=3)
        net.announce(4)
        await net.tick(3)
        app = make_matcher(
            net.daemon.world, net.daemon.store, net.daemon.matchmaker, net.daemon.settler, net.daemon.reports, net.daemon.audits, Metrics(), net.clock,
            {"matcher": MATCHER.address, "feeBps": 200, "swarm": net.swarm.addresses()},
        )  # fmt: skip
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://matcher") as http:
            paths = (
                "/v1/status",
                "/v1/models",
                "/v1/miners",
                "/v1/allocation",
                "/v1/routes",
                "/v1/fleet",
            )
            return {
                path: (
                    await http.get(
                        path, params={"model": MODEL_ID} if path == "/v1/fleet" else None
                    )
                ).json()
                for path in paths
            }
    finally:
        for store in net.stores:
            store.close()


@dataclass
class PagesWorld(World):
    """The whole, with pages on."""

    chain: WrittenChain = field(default_factory=lambda: WrittenChain(int(time.time())))

    def __post_init__(self) -> None:
        contracts = {
            f"network.contracts.{name}": where for name, where in WrittenChain.addresses.items()
        }
        self.flags = {
            "gateway.dashboard": "true",
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
        matcher: Any = ToldMatcher(self.told)
        gateway.matcher = matcher
        gateway.store = open_store(self.settings)
        _fill(gateway.store)
        return gateway

    @property
    def login_url(self) -> str:
        return f"{self.url}/login?token={self.gateway.local_token}"

    def client(self, *, session: bool = False) -> httpx2.Client:
        """A browser's simple sister."""
        http = httpx2.Client(base_url=self.url, timeout=30)
        if session:
            link = {"token": self.gateway.local_token}
            found = httpx2.get(f"{self.url}/login", params=link, timeout=30)
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
            opening = Reservation(
                f"req_{number:032x}", f"rcpt_{number:032x}", key_.key_id, "/v1/chat/completions", "toy", f"{number}", None, 100,
            )  # fmt: skip
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
    """The job that the toy works for, with two requests and their receipts, as if we had opened it."""
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
    """A gateway over the toy, a matcher's answers and a written chain, with something to see on every page."""
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
    return bool(http.get("/api/explorer").json()["total_events"] == len(world.chain.past))
