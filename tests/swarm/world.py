"""A devnet of real processes around a tiny model, and what tests do with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from client.context import open_store
from core.chain.rpc import RpcChain
from core.protocol import ids
from core.protocol.types import JobState, Order, Stage
from core.runtime.settings import Settings, load
from devnet.accounts import environ_of
from devnet.ledger import Holdings, snapshot
from devnet.network import Devnet, MinerProfile, program
from miner.records.home import Home, RunningDaemon
from tests.swarm.traces import listening_ports, mentioning, nobody_listens, of_sessions

MODEL = "tiny"
LAYERS = 8
CONTEXT_TOKENS = 512
#: Deadlines are for a machine that does ten other things; nothing waits longer than it must.
PROGRAM_WITHIN_S = 150.0
WITHIN_S = 120.0
SERVE_WITHIN_S = 240.0
POLL_S = 0.1
LINGERS_S = 20.0
LINE_BYTES = 2**26
DECODE_STEPS = 'headrace_stage_seconds_count{kind="decode"}'
TELLING_STEPS = 4
#: For `pytestmark`: the tests of one devnet run in one event loop and share the devnet.
MARKS = [pytest.mark.swarm, pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(600)]


async def until(
    check: Callable[[], Awaitable[Any]], *, within_s: float, what: str, poll_s: float = POLL_S
) -> Any:
    """Poll until the check finds something; its finding. Fails the test when it takes too long."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = await check()
        if found:
            return found
        await asyncio.sleep(poll_s)
    pytest.fail(f"not within {within_s:g} s: {what}")


async def nothing_left(text: str, ports: set[int]) -> None:
    """Fail unless no process with this text in its environment is left, and no port answers.

    torch's helper for shared memory leads its own session and ends a moment after its last user.
    """

    async def all_gone() -> bool:
        return not mentioning(text)

    await until(all_gone, within_s=LINGERS_S, what=f"every process of {text} is gone")
    nobody_listens(ports)


@dataclass(frozen=True)
class Done:
    """How a program ended."""

    argv: Sequence[str]
    code: int
    out: str
    err: str

    def expect(self, code: int) -> Done:
        """Itself, if it ended with this code; else the test fails with what it said."""
        if self.code != code:
            pytest.fail(
                f"{' '.join(self.argv)}\nended with {self.code}, not {code}\n"
                f"{self.out[-2000:]}\n{self.err[-3000:]}"
            )
        return self

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def result(self) -> Any:
        """What it answered with --json."""
        return next(d["result"] for d in self.documents if "result" in d)

    @property
    def error(self) -> dict[str, Any]:
        """How it failed, with --json."""
        found: dict[str, Any] = next(d["error"] for d in self.documents if "error" in d)
        return found


async def _stream(fd: int) -> asyncio.StreamReader:
    """What comes out of a pipe; it is closed at its end."""
    stream = asyncio.StreamReader(limit=LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(fd, "rb", buffering=0)
    )
    return stream


async def _hear(
    out: asyncio.StreamReader,
    err: asyncio.StreamReader,
    code: asyncio.Future[int],
    lines: list[bytes],
) -> tuple[bytes, bytes]:
    """What a program says until it ends, on both streams; `lines` has its output as it comes."""

    async def output() -> None:
        async for line in out:
            lines.append(line)

    _, said = await asyncio.gather(output(), err.read())
    await code
    return b"".join(lines), said


@dataclass
class Ongoing:
    """A program that still runs."""

    argv: Sequence[str]
    pid: int
    code: asyncio.Future[int]
    ended: asyncio.Task[tuple[bytes, bytes]]
    lines: list[bytes]  # of its output so far

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    async def done(self, within_s: float = PROGRAM_WITHIN_S) -> Done:
        """Wait for its end. Fails the test when it does not come."""
        finished, _ = await asyncio.wait([self.ended], timeout=within_s)
        if not finished:
            self.kill()
            _, err = await self.ended
            pytest.fail(f"{' '.join(self.argv)} ran longer than {within_s:g} s\n{err.decode()}")
        out, err = self.ended.result()
        return Done(self.argv, self.code.result(), out.decode(), err.decode())

    def kill(self) -> None:
        """SIGKILL, also to its children."""
        if not self.code.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class JobSeen:
    """A job as the chain has it."""

    job_id: str
    order: Order
    plan: tuple[Stage, ...]
    state: JobState
    tokens_in: int
    tokens_out: int
    final_at: int
    open_call: dict[str, Any]


@dataclass
class World:
    """One devnet, with everything a test started in it."""

    net: Devnet
    profiles: dict[str, MinerProfile]
    folder: Path
    begun: list[Ongoing] = field(default_factory=list)

    @property
    def chain(self) -> RpcChain:
        assert self.net.chain is not None
        return self.net.chain

    # --- building it ---

    async def start(self, stake: str = "500usd") -> None:
        """Chain, contracts, matcher, and all miners of `profiles`, serving."""
        net = self.net
        await net.warm_up()
        await net.start_chain(keep=True)
        await net.deploy()
        await asyncio.gather(
            net.start_matcher(), *(net.register_miner(party, stake) for party in self.profiles)
        )
        for party, profile in self.profiles.items():
            await net.start_miner(party, profile)
        await self.all_serve()

    async def all_serve(self, within_s: float = SERVE_WITHIN_S) -> None:
        """Start the miners that are down and wait until every one serves."""
        up = {running.name for running in self.net.processes.running if running.is_alive}
        for party, profile in self.profiles.items():
            if party not in up:
                await self.net.start_miner(party, profile)

        async def serve() -> bool:
            """By their own word: the matcher believes in a dead miner until its record expires."""
            try:
                states = [(await self.status_of(party))["state"] for party in self.profiles]
            except (AssertionError, httpx2.HTTPError):
                return False
            return set(states) == {"SERVING"}

        await until(serve, within_s=within_s, what="every miner serves")
        await self.net.wait_serving(len(self.profiles), within_s)

    async def close(self) -> None:
        """Stop everything. Fails when a process or a port is left."""
        sessions = tuple(self.net.processes._ends)  # every one that was started
        ports = listening_ports([*of_sessions(sessions), *mentioning(str(self.net.layout.root))])
        try:
            for ongoing in self.begun:
                ongoing.kill()
            await asyncio.gather(*(ongoing.ended for ongoing in self.begun))
        finally:
            await self.net.close()
        assert len(ports) > len(self.profiles), "every miner listens, so ports were looked at"
        assert of_sessions(sessions) == []
        await nothing_left(str(self.net.layout.root), ports)

    # --- programs ---

    async def begin(
        self,
        party: str,
        name: str,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
    ) -> Ongoing:
        """Start one of our programs as a party, or a module of the tests."""
        argv = program(name, *arguments)
        if name.startswith("tests."):
            argv = [sys.executable, "-m", name, *arguments]
        pipes = [os.pipe(), os.pipe()]
        try:
            pid, code = await self.net.processes.launch(
                argv,
                {**environ_of(self.net.layout, party), **(environ or {})},
                *(theirs for _, theirs in pipes),
                folder=self.folder,
            )
        finally:
            for _, theirs in pipes:
                os.close(theirs)
        out, err = [await _stream(ours) for ours, _ in pipes]
        lines: list[bytes] = []
        hearing = asyncio.create_task(_hear(out, err, code, lines))
        ongoing = Ongoing(argv[1:], pid, code, hearing, lines)
        self.begun.append(ongoing)
        return ongoing

    async def run(
        self,
        party: str,
        name: str,
        *arguments: str,
        expect: int = 0,
        environ: Mapping[str, str] | None = None,
        within_s: float = PROGRAM_WITHIN_S,
    ) -> Done:
        """Run one of our programs as a party to its end, which must be with this exit code."""
        ongoing = await self.begin(party, name, *arguments, environ=environ)
        return (await ongoing.done(within_s)).expect(expect)

    def requests(self, name: str, lines: Sequence[Mapping[str, Any] | str]) -> Path:
        """A JSONL file of requests; a text is a line as it is."""
        path = self.folder / f"{name}.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(f"{text}\n" for text in texts))
        return path

    async def begin_submit(self, file: Path, *options: str) -> tuple[Ongoing, Path]:
        """`client submit` of the requester, and the folder of its results."""
        out = self.folder / f"{file.stem}-{len(self.begun)}"
        return await self.begin(
            "requester-1",
            "client",
            "submit",
            str(file),
            "--yes",
            "--json",
            "--out",
            str(out),
            *options,
        ), out

    async def submit(self, file: Path, *options: str, expect: int = 0) -> tuple[Done, Path]:
        """The same, to its end."""
        ongoing, out = await self.begin_submit(file, *options)
        return (await ongoing.done()).expect(expect), out

    # --- what there is ---

    async def holdings(self) -> dict[str, Holdings]:
        return await snapshot(self.chain, self.net.addresses)

    async def party_of(self, operator: str) -> str:
        """Who owns a machine."""
        owner = await self.chain.read("MinerRegistry", "ownerOf", operator)
        return next(n for n, a in self.net.addresses.items() if a.lower() == owner.lower())

    async def jobs(self) -> list[JobSeen]:
        """Every job that was ever matched, oldest first."""
        head = await self.chain.block_number()
        events = await self.chain.events(self.net.deploy_block, head)
        found = []
        for event in events:
            if event.name == "JobMatched":
                call = await self.chain.call_of(event.tx_hash)
                assert call is not None
                now = await self.chain.read(
                    "TaskRegistry", "jobOf", *(event.args[k] for k in ("job", "planHash"))
                )
                found.append(
                    JobSeen(
                        event.args["job"],
                        msgspec.convert(call.args["order"], Order),
                        tuple(msgspec.convert(call.args["plan"], list[Stage])),
                        JobState(now["state"]),
                        now["tokensIn"],
                        now["tokensOut"],
                        now["finalAt"],
                        call.args,
                    )
                )
        return found

    async def matched(self, known: int, ongoing: Ongoing) -> JobSeen:
        """The job that a client has opened after so many. Fails if the client ends first."""

        async def look() -> JobSeen | None:
            if not ongoing.is_running:
                (await ongoing.done()).expect(-1)
            jobs = await self.jobs()
            return jobs[-1] if len(jobs) > known else None

        seen: JobSeen = await until(look, within_s=PROGRAM_WITHIN_S, what="the job is opened")
        return seen

    async def under_way(self, known: int, ongoing: Ongoing) -> JobSeen:
        """The same, once the last stage has told some tokens of its answers."""
        job = await self.matched(known, ongoing)
        last = await self.party_of(job.plan[-1].operator)
        before = await self._decode_steps(last)

        async def answers() -> bool:
            if not ongoing.is_running:
                (await ongoing.done()).expect(-1)
            return await self._decode_steps(last) >= before + TELLING_STEPS

        await until(answers, within_s=PROGRAM_WITHIN_S, what="answers have begun", poll_s=0.02)
        return job

    async def _decode_steps(self, party: str) -> int:
        """How many a miner has computed, by its metrics."""
        text = await self.get(self.running(party).url + "/metrics")
        samples = (line.split() for line in text.splitlines() if line.startswith(DECODE_STEPS))
        return sum(int(float(value)) for _, value in samples)

    async def jobs_of(self, summary: Mapping[str, Any]) -> list[JobSeen]:
        """The jobs that one `client submit` needed."""
        wanted = summary["job_ids"]
        return [j for j in await self.jobs() if ids.full(ids.Kind.JOB, j.job_id) in wanted]

    async def ended(self, job_id: str, state: JobState, within_s: float = WITHIN_S) -> JobSeen:
        """The job, once it is in this state."""

        async def look() -> JobSeen | None:
            found = next(job for job in await self.jobs() if job.job_id == job_id)
            return found if found.state is state else None

        seen: JobSeen = await until(look, within_s=within_s, what=f"job {job_id} {state.name}")
        return seen

    async def session_closed(self, job_id: str) -> JobSeen:
        """The session, once its last word is on chain and the while after its closing passed."""

        async def closing() -> bool:
            events = await self.chain.events(self.net.deploy_block, await self.chain.block_number())
            return any(e.name == "JobClosing" and e.args["job"] == job_id for e in events)

        await until(closing, within_s=WITHIN_S, what=f"session {job_id} is closed")
        await self.pass_time(self.net.parameters.close_delay_s + 2)
        return await self.ended(job_id, JobState.SETTLED)

    def settings_of(self, party: str) -> Settings:
        """What a party's programs are configured with."""
        return load(environ={"HEADRACE_HOME": str(self.net.layout.home(party))})

    def running(self, party: str) -> RunningDaemon:
        """Where a miner's daemon answers."""
        found = Home.of(self.settings_of(party)).read_running()
        assert found is not None, f"{party} does not run"
        return found

    async def status_of(self, party: str) -> dict[str, Any]:
        """`/status` of a miner."""
        found: dict[str, Any] = json.loads(await self.get(self.running(party).url + "/status"))
        return found

    async def get(self, url: str) -> str:
        async with httpx2.AsyncClient(timeout=10.0) as client:
            return str((await client.get(url)).raise_for_status().text)

    def answered(self, job_id: str) -> int:
        """How many answers of a job the requester keeps, with the receipts of every stage."""
        store = open_store(self.settings_of("requester-1"))
        try:
            return sum(bool(request.finish) for request in store.requests(job_id))
        finally:
            store.close()

    async def pass_time(self, seconds: int) -> None:
        """Let the chain believe that this time has passed."""
        await self.chain.rpc("evm_increaseTime", seconds)
        await self.chain.rpc("evm_mine")


def answers_in(out: Path) -> dict[str, str]:
    """Texts by custom id."""
    lines = map(json.loads, (out / "output.jsonl").read_text().splitlines())
    return {
        line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
        for line in lines
    }


def tokens_in(out: Path) -> dict[str, int]:
    """Tokens produced by custom id."""
    lines = map(json.loads, (out / "output.jsonl").read_text().splitlines())
    return {
        line["custom_id"]: line["response"]["body"]["usage"]["completion_tokens"] for line in lines
    }


def prompt(custom_id: str, text: str, max_tokens: int) -> dict[str, Any]:
    """One line of a batch file."""
    return {"custom_id": custom_id, "body": {"prompt": text, "max_tokens": max_tokens}}
