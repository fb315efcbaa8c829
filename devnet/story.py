"""`devnet demo`: the first paid answer and the slashed liar, told while they happen.

Every figure is read from the chain, from the programs' own output or from a clock. Where the
contract's arithmetic says what an account must hold, the story computes it apart
(`core/money/pricing.py`) and stops if one unit differs.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from rich.console import Console
from rich.table import Table

from client.disputes.game_record import ShownMove, describe_trial, moves_of, on_trial
from core.chain.chain import Chain, ChainEvent
from core.chain.rpc import RpcChain
from core.dispute.game.game_log import Opened, games
from core.money import pricing
from core.protocol import ids
from core.protocol.errors import CheckFailed
from core.protocol.network_file import USD, Parameters
from core.protocol.types import JobState, ModelSpec, Order, Stage
from core.protocol.units import NANO, format_token, whole_units
from devnet.ledger import Holdings, changes, snapshot
from devnet.network import FUNDS, HETEROGENEOUS, Devnet, MinerProfile, program

#: With a tolerance game, the paid file alone, questions to a gateway, the dispute alone, a jury.
STORIES = ("all", "offline", "online", "dispute", "jury")
QUESTIONS = ("Why is the sky blue?", "Name three rivers.", "What is a hash?")
ANSWER_TOKENS = 24
#: All programs share this machine: turns in which a slow one still makes its trace.
PATIENT = Parameters(turn_s=60, max_dispute_s=1800, unbond_s=4600)
STAKE = "500usd"
JUROR_STAKE = "100usd"
JURORS = ("juror-1", "juror-2", "juror-3")
WINDOW = "10m"
PROMPTS = Path(__file__).with_name("prompts.jsonl")
DOUBTED_PROMPTS = Path(__file__).with_name("doubted_prompts.jsonl")


@dataclass
class StoryFacts:
    """What the closing table reports."""

    jobs: int = 0
    tokens: int = 0
    pipeline_tokens_per_s: float = 0.0
    generate_tokens_per_s: float = 0.0
    balances: dict[str, Holdings] = field(default_factory=dict)
    gas: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class SettledJob:
    """A job as it ended on chain."""

    job_id: str
    order: Order
    plan: tuple[Stage, ...]
    tokens_in: int
    tokens_out: int


class Story:
    """One run of the demonstration."""

    def __init__(self, net: Devnet, console: Console, story: str = "all") -> None:
        self._net, self._out, self._story = net, console, story
        self._facts = StoryFacts()
        self._chapters = 0
        self._began_s = time.monotonic()
        self._seen: list[ChainEvent] = []
        self._read_to = 0

    async def tell(self) -> None:
        """All chapters. Raises when anything is not as it must be."""
        await self._set_up()
        await self._miners_join()
        if self._story == "online":
            await self._asked_online()
        elif self._story != "dispute":
            await self._paid_job()
        if self._story not in ("offline", "online"):
            await self._lying_job()
        await self._closing_table()

    # --- chapters ---

    async def _set_up(self) -> None:
        self._chapter("A chain, contracts, wallets")
        net = self._net
        await net.warm_up()
        chain = await net.start_chain()
        self._say(f"anvil     chain {chain.chain_id} at {chain.rpc_url}")
        contracts = await net.deploy()
        for name, address in contracts.items():
            self._say(f"contract  {name:<15} {address}")
        for party, address in net.addresses.items():
            funds = format_token(FUNDS[party]) if party in FUNDS else "gas only"
            self._say(f"wallet    {party:<15} {address}  {funds}")
        self._say(f"keystores {net.layout.keystores} (version 3, password in a file)")
        model = ids.short(ids.Kind.MODEL, net.model_id)
        self._say(f"model     {net.model}  {model} registered by the hash of its weights")

    async def _miners_join(self) -> None:
        self._chapter("Three unequal miners stake, join the swarm and get their layers")
        net = self._net
        async with asyncio.TaskGroup() as group:
            group.create_task(net.start_matcher())
            registered = {
                party: group.create_task(net.register_miner(party, STAKE))
                for party in HETEROGENEOUS
            }
        self._say(f"matcher   {net.matcher_url}  swarm {net.bootstrap[0]}")
        for party, task in registered.items():
            self._say(f"$ miner register --stake {STAKE}    ({party})")
            self._quote(task.result())
        for party, profile in HETEROGENEOUS.items():
            await net.start_miner(party, profile)
            self._say(f"started   {party}: {profile.memory}, {_speed(profile)}")
        if self._story == "jury":
            async with asyncio.TaskGroup() as group:
                for juror in JURORS:
                    group.create_task(net.start_juror(juror, JUROR_STAKE))
            self._say(f"jurors    {', '.join(JURORS)} staked {JUROR_STAKE} each and watch")
        await self._show_serving()

    async def _paid_job(self) -> None:
        self._chapter("Eight prompts, paid from a wallet")
        net = self._net
        before = await self._snapshot()
        out = net.layout.root / "answers"
        await self._client("submit", str(PROMPTS), "--yes", "--out", str(out), "--max-tokens", "24")
        job = await self._settled_job(net, "settleAck")
        self._count(job)
        answers = (out / "output.jsonl").read_text().splitlines()
        self._say(f"answers   {len(answers)} in {out / 'output.jsonl'}")
        verify = program("client", "receipts", "verify", self._short(job))
        self._quote(await net.run("requester-1", verify))
        await self._check_books(job, before, await self._snapshot(), at_fault=frozenset())
        self._facts.pipeline_tokens_per_s = await self._pipeline_rate()
        self._facts.generate_tokens_per_s = await self._generate_rate()

    async def _asked_online(self) -> None:
        self._chapter("Questions to an OpenAI endpoint of one's own, paid from the wallet")
        net = self._net
        before = await self._snapshot()
        await net.start_gateway(pages=False)
        secret = await net.new_key("story")
        self._say(f"gateway   {net.gateway_url}/v1: any OpenAI client takes it as its base URL")
        charged = 0
        for question in QUESTIONS:
            charged += await self._asked(secret, question)
        self._say("stopping  the gateway: it acknowledges its session a last time")
        await net.processes.stop("gateway", grace_s=90)
        await self._sessions_end()
        observed = changes(before, await self._snapshot())
        if whole_units(-observed.get("requester-1", 0)) != charged or sum(observed.values()):
            why = f"{charged} units were charged: {observed}"
            raise CheckFailed("the books differ from the receipts", why)
        self._say(f"books     {format_token(charged)} by the receipts, and by the chain")

    async def _asked(self, secret: str, question: str) -> int:
        """Stream one answer; what its receipts cost, in base units."""
        net = self._net
        messages = [{"role": "user", "content": question}]
        body = {"model": net.model, "stream": True, "messages": messages}
        body["max_tokens"] = ANSWER_TOKENS
        headers = {"authorization": f"Bearer {secret}"}
        began_s, first_s, text = time.monotonic(), 0.0, ""
        async with httpx2.AsyncClient(
            base_url=net.gateway_url, headers=headers, timeout=60
        ) as http:
            async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                receipt = answer.headers["x-receipt-id"]
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        said = choice["delta"].get("content") or ""
                        first_s = first_s or (time.monotonic() - began_s if said else 0.0)
                        text += said
            told = (await http.get(f"/v1/receipts/{receipt}")).raise_for_status().json()
        tokens, cost = told["tokens_out"], int(told["cost_units"])
        self._facts.tokens += tokens
        self._say(f"asked     {question}")
        self._quote(text)
        timed = f"{tokens} tokens, the first after {first_s:.2f} s"
        self._say(f"          {timed}; {format_token(cost)}, {receipt}")
        return cost

    async def _sessions_end(self) -> None:
        """Until every job has ended; the chain's clock may jump to the end of a session."""
        over = (JobState.SETTLED, JobState.EXPIRED)

        async def ended() -> bool:
            jobs = [event.args["job"] for event in await self._events("JobMatched")]
            states = [await self._job(job) for job in jobs]
            self._facts.jobs = len(jobs)
            if all(JobState(state["state"]) in over for state in states):
                return True
            await self._chain.rpc("evm_increaseTime", 30)
            await self._chain.rpc("evm_mine")
            return False

        await self._net.processes.wait_ready(self._net.processes.get("matcher-1"), ended, 90.0)

    async def _lying_job(self) -> None:
        net = self._net
        # Any stage is caught. One that signs rows of the whole prompt shows it in the first rows.
        route = (await net.ask_matcher("/v1/routes"))["routes"][0]["stages"]
        liar = await self._party_of(route[-2]["operator"])
        self._chapter(f"{liar} rounds one layer to int8 and is caught")
        layers = await self._layers_of(liar)
        lie_layer = (layers[0] + layers[1]) // 2
        await net.processes.stop(liar)
        await self._gone(liar)
        lie = MinerProfile(HETEROGENEOUS[liar].memory, lie_layer=lie_layer, defend=True)
        await net.start_miner(liar, lie)
        held = f"{layers[0]}-{layers[1] - 1}"
        self._say(f"restarted {liar} with layer {lie_layer} of its {held} rounded to int8")
        await self._show_serving()
        before = await self._snapshot()
        options = ["--yes", "--no-text", "--ack", "later", "--window", WINDOW, "--max-tokens", "16"]
        options += ["--auditor", net.addresses["auditor-1"]]
        options += ["--out", str(net.layout.root / "doubted")]
        options += ["--arbitrator", "jury"] if self._story == "jury" else []
        await self._client("submit", str(DOUBTED_PROMPTS), *options)
        job_id = await self._delivered_job()
        short = ids.short(ids.Kind.JOB, job_id)
        self._say(f"delivered {short}: without a word of the requester, by the matcher's receipts")
        stage = await self._audit(short)
        self._say(f"$ auditor dispute {short} --stage {stage}")
        dispute = program("auditor", "dispute", short, "--stage", str(stage), "--yes")
        if self._story == "jury":
            await net.run("auditor-1", dispute, inherit=True)
        else:
            await self._played(liar, asyncio.create_task(net.run("auditor-1", dispute)))
        await self._pass_window(job_id)
        job = await self._settled_job(net, "finalize", job_id)
        self._count(job)
        guilty = await self._guilty_stage(job)
        await self._check_books(job, before, await self._snapshot(), at_fault=frozenset({guilty}))

    async def _played(self, liar: str, playing: asyncio.Task[str]) -> None:
        """Show the moves of a game as they are mined, then what it ended at."""
        try:
            opened, shown = await self._follow(liar, playing)
            self._quote(await playing)
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
        await self._told_trial(opened, liar, shown)

    async def _follow(
        self, liar: str, playing: asyncio.Task[str]
    ) -> tuple[Opened, list[ShownMove]]:
        """Each move as it is mined, until the accuser's command has ended."""
        players = {"accuser": "auditor-1", "accused": liar, "anyone": "auditor-1"}
        first, shown = await self._chain.block_number(), list[ShownMove]()
        opened: Opened | None = None
        while True:
            ended = playing.done()
            head = await self._chain.block_number()
            if opened is None:
                opened = next(iter(await games(self._chain, first, head)), None)
            if opened is not None:
                for move in await moves_of(self._chain, opened, first, head):
                    shown.append(move)
                    self._say(
                        f"move {len(shown):2}  {players[move.player]:<10} {move.function:<12} "
                        f"{move.gas:>9,} gas {move.calldata_bytes:>6,} bytes  {move.what}"
                    )
                first = head + 1
            if ended and opened is not None:
                return opened, shown
            if ended:
                raise CheckFailed("no dispute was opened", await playing)
            await asyncio.wait([playing], timeout=0.3)

    async def _told_trial(self, opened: Opened, liar: str, shown: list[ShownMove]) -> None:
        trial = await on_trial(self._chain, opened)
        if trial is None:
            self._say(f"{liar} was too slow to answer: its clock ran out, which loses as well")
        for what, value in describe_trial(trial).items() if trial else ():
            self._say(f"{what:<26} {value}")
        ours = own_value((self._net.layout.logs / f"{liar}.log").read_text(errors="replace"))
        if ours is not None:
            pointed = f"{liar} pointed, having"
            self._say(f"{pointed:<26} {ours!r}  ({ours.hex()}) for the whole value")
        gas, calldata = sum(m.gas for m in shown), sum(m.calldata_bytes for m in shown)
        largest = max(shown, key=lambda m: m.gas)
        self._say(
            f"no one voted: {len(shown)} transactions, {gas:,} gas, {calldata:,} bytes; "
            f"the largest is {largest.function} with {largest.gas:,} gas"
        )

    async def _closing_table(self) -> None:
        self._chapter("Who holds what, and what it cost")
        net, facts = self._net, self._facts
        facts.gas = await gas_by_function(self._chain, net.deploy_block)
        table = _table("account", "wallet", "prepaid", "credit", "stake")
        for name, held in (await self._snapshot()).items():
            amounts = (held.wallet, held.prepaid, held.credit, held.stake)
            table.add_row(name, *(format_token(a) for a in amounts))
        self._out.print(table)
        gas = _table("transaction", "times", "gas (median)")
        for name, used in sorted(facts.gas.items()):
            gas.add_row(name, str(len(used)), f"{round(statistics.median(used)):,}")
        self._out.print(gas)
        self._say(f"jobs      {facts.jobs}, {facts.tokens} tokens produced")
        if not facts.generate_tokens_per_s:
            return
        ours, alone = facts.pipeline_tokens_per_s, facts.generate_tokens_per_s
        self._say(
            f"speed     {ours:.1f} tokens/s over three stages, {alone:.1f} tokens/s by one process "
            f"generating one prompt at a time ({ours / alone:.2f}×)"
        )

    # --- helpers ---

    @property
    def _chain(self) -> RpcChain:
        assert self._net.chain is not None
        return self._net.chain

    def _chapter(self, title: str) -> None:
        self._chapters += 1
        self._out.print(f"\n[bold]{self._chapters}. {title}[/bold]")

    def _say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._began_s
        self._out.print(f"{elapsed_s:4.0f}s  {text}", soft_wrap=True, highlight=False, markup=False)

    def _quote(self, printed: str) -> None:
        plain = {"soft_wrap": True, "highlight": False, "markup": False, "style": "dim"}
        for line in printed.rstrip().splitlines():
            self._out.print(f"    {line}", **plain)

    def _short(self, job: SettledJob) -> str:
        return ids.short(ids.Kind.JOB, job.job_id)

    async def _client(self, *arguments: str) -> None:
        self._say("$ client " + " ".join(arguments))
        await self._net.run("requester-1", program("client", *arguments), inherit=True)

    async def _snapshot(self) -> dict[str, Holdings]:
        return await snapshot(self._chain, self._net.addresses)

    async def _gone(self, party: str) -> None:
        """Until the matcher no longer counts on this miner."""
        owner = self._net.addresses[party].lower()

        async def gone() -> bool:
            return all(str(m["owner"]).lower() != owner for m in await self._net.serving())

        await self._net.processes.wait_ready(self._net.processes.get("matcher-1"), gone, 30.0)

    async def _show_serving(self) -> None:
        for miner in await self._net.wait_serving(len(HETEROGENEOUS)):
            party, (first, end) = await self._party_of(miner["operator"]), miner["layers"]
            tau = f"{miner['tauMsPerLayer']:.2f} ms/layer"
            self._say(f"serving   {party}  layers {first}-{end - 1}  τ {tau}")

    async def _layers_of(self, party: str) -> tuple[int, int]:
        owner = self._net.addresses[party].lower()
        for miner in await self._net.serving():
            registered = await self._chain.read("MinerRegistry", "ownerOf", miner["operator"])
            if registered.lower() == owner:
                return miner["layers"][0], miner["layers"][1]
        raise CheckFailed(f"{party} is not serving", "its record is missing")

    async def _events(self, name: str) -> list[Any]:
        head = await self._chain.block_number()
        if head > self._read_to:
            self._seen += await self._chain.events(self._read_to + 1, head)
            self._read_to = head
        return [e for e in self._seen if e.name == name]

    async def _audit(self, job: str) -> int:
        """Have the auditor re-run the job; print its findings and return the stage it names."""
        self._say(f"$ auditor check {job}")
        check = program("auditor", "check", job, "--json")
        printed = await self._net.run("auditor-1", check, expect=9, show_progress=True)
        findings, failure = (json.loads(line) for line in printed.splitlines())
        columns = ("stage", "layers", "deviation", "allowed", "first_divergent_step", "verdict")
        table = _table(*(column.replace("_", " ") for column in columns), justify="left")
        for row in findings["result"]:
            table.add_row(*(str(row[column]) for column in columns))
        self._out.print(table)
        return int(failure["error"]["details"]["stage"])

    async def _pass_window(self, job_id: str) -> None:
        """The auditor is done, so the chain's clock may jump over the rest of the window."""
        job = await self._job(job_id)
        rest_s = job["finalAt"] - await self._chain.now() + 1
        if rest_s > 0:
            await self._chain.rpc("evm_increaseTime", rest_s)
            await self._chain.rpc("evm_mine")
            self._say(f"clock     moved {rest_s} s forward, over the rest of the dispute window")

    async def _job(self, job_id: str) -> Any:
        """What the chain says of a job that was matched."""
        matched = await self._events("JobMatched")
        plan_hash = next(e.args["planHash"] for e in matched if e.args["job"] == job_id)
        return await self._chain.read("TaskRegistry", "jobOf", job_id, plan_hash)

    async def _delivered_job(self) -> str:
        running = self._net.processes.get("matcher-1")

        async def delivered() -> bool:
            return bool(await self._events("JobDelivered"))

        await self._net.processes.wait_ready(running, delivered, 60.0)
        return str((await self._events("JobDelivered"))[-1].args["job"])

    async def _settled_job(self, net: Devnet, function: str, job_id: str = "") -> SettledJob:
        running = net.processes.get("matcher-1")
        found: list[Any] = []

        async def settled() -> bool:
            found[:] = [
                e for e in await self._events("JobSettled") if job_id in ("", e.args["job"])
            ]
            return bool(found)

        await net.processes.wait_ready(running, settled, 60.0)
        event = found[-1]
        call = await self._chain.call_of(event.tx_hash)
        if call is None or call.function != function:
            raise CheckFailed(f"the job was not settled by {function}", str(call and call.function))
        on_chain = await self._job(event.args["job"])
        counts = call.args.get("ack") or on_chain
        return SettledJob(
            event.args["job"],
            msgspec.convert(call.args["order"], Order),
            tuple(msgspec.convert(call.args["plan"], list[Stage])),
            counts["tokensIn"],
            counts["tokensOut"],
        )

    def _count(self, job: SettledJob) -> None:
        self._facts.jobs += 1
        self._facts.tokens += job.tokens_out

    async def _guilty_stage(self, job: SettledJob) -> int:
        mask = (await self._job(job.job_id))["faultMask"]
        guilty = [i for i in range(len(job.plan)) if mask >> i & 1]
        if len(guilty) != 1:
            raise CheckFailed("exactly one stage must be at fault", f"the chain says {guilty}")
        return guilty[0]

    async def _check_books(
        self,
        job: SettledJob,
        before: Mapping[str, Holdings],
        after: Mapping[str, Holdings],
        *,
        at_fault: frozenset[int],
    ) -> None:
        """Compare what changed with the contract's arithmetic, to the nano unit."""
        expected = await self._expected_changes(job, before, at_fault)
        observed = changes(before, after)
        table = _table("account", "before", "after", "change", "by the contract")
        for name in sorted(set(expected) | set(observed)):
            table.add_row(
                name,
                format_token(whole_units(before[name].total)),
                format_token(whole_units(after[name].total)),
                f"{observed.get(name, 0) / (USD * NANO):+.6f}",
                f"{expected.get(name, 0) / (USD * NANO):+.6f}",
            )
        self._out.print(table)
        if observed != {k: v for k, v in expected.items() if v}:
            why = f"{observed} ≠ {expected}"
            raise CheckFailed("the books differ from the contract's arithmetic", why)
        if sum(observed.values()):
            raise CheckFailed("money appeared or vanished", f"{sum(observed.values())} nano units")
        self._say("books     every account as the contract's arithmetic says, to the nano unit")

    async def _expected_changes(
        self, job: SettledJob, before: Mapping[str, Holdings], at_fault: frozenset[int]
    ) -> dict[str, int]:
        p = self._net.parameters
        spec = await self._chain.read("ModelRegistry", "specOf", job.order.model_id)
        split = pricing.split(
            job.order,
            job.plan,
            msgspec.convert(spec, ModelSpec),
            job.tokens_in,
            job.tokens_out,
            protocol_fee_bps=p.protocol_fee_bps,
            at_fault=at_fault,
        )
        expected = {
            "requester-1": -split.paid,
            "matcher-1": split.matcher_fee + split.opening,
            "deployer": split.protocol_fee,
        }
        for stage, pay in zip(job.plan, split.pays, strict=True):
            owner = await self._party_of(stage.operator)
            expected[owner] = expected.get(owner, 0) + pay
        for index in at_fault:
            owner = await self._party_of(job.plan[index].operator)
            stake = whole_units(before[owner].stake)
            taken = stake * p.slash_bps // 10_000
            bond = max(p.bond, stake * p.bond_bps // 10_000)
            to_challenger = min(taken * 2_000 // 10_000, 10 * bond)
            to_victim = min(taken * 3_000 // 10_000, whole_units(split.locked))
            expected[owner] -= taken * NANO
            expected["requester-1"] += to_victim * NANO
            expected["auditor-1"] = to_challenger * NANO
            expected["burned"] = (taken - to_challenger - to_victim) * NANO
            if self._story == "jury":
                each = p.jury_fee // p.panel
                expected["auditor-1"] -= p.jury_fee * NANO
                expected |= dict.fromkeys(JURORS, each * NANO)
                expected["burned"] += (p.jury_fee - each * p.panel) * NANO
        return expected

    async def _party_of(self, operator: str) -> str:
        owner = await self._chain.read("MinerRegistry", "ownerOf", operator)
        return next(n for n, a in self._net.addresses.items() if a.lower() == owner.lower())

    async def _pipeline_rate(self) -> float:
        """Tokens per second of the paid job, as the client measured it."""
        summary = json.loads((self._net.layout.root / "answers" / "summary.json").read_text())
        return float(summary["tokens_per_s"])

    async def _generate_rate(self) -> float:
        """Tokens per second of transformers' `generate` in one process, one prompt at a time."""
        argv = [*program("devnet", "measure-generate"), "--json", str(PROMPTS)]
        printed = await self._net.run("requester-1", argv)
        return float(json.loads(printed)["result"]["tokens_per_s"])


def own_value(log: str) -> float | None:
    """What a miner's log says it has itself where it pointed last; None if at no number."""
    for line in reversed(log.splitlines()):
        if '"ours"' not in line:
            continue
        try:
            found = json.loads(line).get("ours")
        except ValueError:
            continue
        return float(found) if isinstance(found, int | float) else None
    return None


def _table(first: str, *others: str, justify: Any = "right") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for column in others:
        table.add_column(column, justify=justify)
    return table


def _speed(profile: MinerProfile) -> str:
    if not profile.slow_ms_per_layer:
        return "full speed"
    return f"{profile.slow_ms_per_layer:g} ms slower per layer"


async def gas_by_function(chain: Chain, first_block: int) -> dict[str, list[int]]:
    """Gas of every transaction to our contracts, by `Contract.function`."""
    used: dict[str, list[int]] = {}
    for number in range(first_block, await chain.block_number() + 1):
        for mined in await chain.mined(number):
            if call := mined.call:
                used.setdefault(f"{call.contract}.{call.function}", []).append(mined.gas_used)
    return used
