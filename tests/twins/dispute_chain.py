"""Tolerance games on a local chain, each move made in both twins and compared."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from eth_abi.abi import decode, encode
from eth_utils.abi import collapse_if_tuple, function_abi_to_4byte_selector
from eth_utils.crypto import keccak

from core.chain.artifacts import artifact
from core.chain.rpc import RpcChain
from core.dispute.game.dispute import Phase
from core.dispute.trace.calls import (
    claim_tuple,
    evidence_tuple,
    opening_tuple,
    row_tuple,
    rows_tuple,
    signed_tuple,
)
from core.dispute.trace.derive import Boundary
from core.dispute.trace.evidence import Evidence, RowOpening, RunOpening, show_stated
from core.dispute.trace.judge import Case, Claim
from core.dispute.trace.layout import Place
from core.dispute.trace.rows import SignedRows, Spot
from core.keys.signer import Signer
from core.protocol import commit, signing
from core.protocol.network_file import Parameters
from core.protocol.types import ZERO_HASH, Order, RequestLeaf, RequestOpening, StageReceipt
from devnet.deploy import deploy
from tests.conftest import CHAIN_ID
from tests.twins.game.draw import Drawn
from tests.twins.game.game import Game, GameError, GameParameters, opened
from tests.twins.game.packing import binding, packed_place, statement
from tests.twins.game.rows import SignedSpan

USD = 10**6
GAS = 12_000_000
TURN_S = 120  # longer than any pause of the machine; who is to be silent is skipped over
PATIENT = Parameters(turn_s=TURN_S, max_dispute_s=30 * TURN_S, unbond_s=60 * TURN_S)
#: What the contract calls an error that the state machine knows by one name.
ALIASES = {
    "OpeningWrong": {"OpeningWrong", "SiblingsWrong"},
    "EvidenceWrong": {"EvidenceInvalid", "SiblingsWrong", "PartsDue", "PartUnknown", "SpotUnknown"},
}


def spot_tuples(spots: Sequence[Spot]) -> list[tuple[Any, ...]]:
    return [(int(spot.boundary), spot.row, spot.part) for spot in spots]


def plain_tuple(message: Order | RequestOpening) -> tuple[Any, ...]:
    """A signed message as the contract takes it."""
    values = msgspec.to_builtins(message).values()
    return tuple(commit.unhex(v) if isinstance(v, str) and len(v) == 66 else v for v in values)


def drawn_tuple(drawn: Drawn, order: Order, signature: bytes) -> tuple[Any, ...]:
    opening = drawn.opening or RequestOpening(ZERO_HASH, 0, ZERO_HASH, ZERO_HASH)
    return (
        plain_tuple(order),
        drawn.sampling,
        list(drawn.proof),
        plain_tuple(opening),
        signature,
        row_tuple(drawn.served),
        drawn.tokens,
    )


def request_tuple(
    leaf: RequestLeaf, position: int, proof: Sequence[bytes], span: SignedSpan | None = None
) -> tuple[Any, ...]:
    """A request as it was signed: this one, or the one that it is a span of."""
    if span is None:
        return signed_tuple(leaf, position, proof)
    return signed_tuple(span.leaf, position, proof, span.inner)


def blank_rows(case: Case) -> SignedRows:
    claim = case.claim
    return SignedRows(case.program, claim.leaf, claim.layer_from, claim.layer_to)


def calldata(contract: str, name: str, args: Sequence[Any]) -> bytes:
    """A call as bytes. `IToleranceGame` has no overloads."""
    (found,) = [
        e
        for e in artifact(contract)["abi"]
        if e.get("name") == name and e["type"] == "function" and len(e["inputs"]) == len(args)
    ]
    types = [collapse_if_tuple(entry) for entry in found["inputs"]]
    return bytes(function_abi_to_4byte_selector(found)) + bytes(encode(types, list(args)))


def error_names() -> dict[str, str]:
    found = {}
    for contract in ("ToleranceGame", "TraceJudge", "RowJudge", "TestUSD", "MinerRegistry"):
        for entry in artifact(contract)["abi"]:
            if entry["type"] == "error":
                types = ",".join(collapse_if_tuple(e) for e in entry["inputs"])
                found[keccak(f"{entry['name']}({types})".encode())[:4].hex()] = entry["name"]
    return found


class Refused(Exception):
    """The contract reverted, with this error."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass
class Bench:
    """A chain with everything deployed, a miner with stake, and an accuser with a bond."""

    url: str
    at: dict[str, str]
    accuser: str
    owner: str
    operator: str
    requester: str
    gas_used: list[tuple[str, int, int]]

    @classmethod
    def make(cls, url: str, signers: list[Signer]) -> Bench:
        async def run() -> dict[str, str]:
            chain = RpcChain(url, CHAIN_ID, {})
            try:
                at = await deploy(chain, signers[0], signers[0].address, PATIENT)
                domain = signing.Domain(CHAIN_ID, at["TaskRegistry"])
                owner, operator = signers[1], signers[2]
                await chain.transact(signers[0], "TestUSD", "mint", owner.address, 1000 * USD)
                await chain.transact(signers[0], "TestUSD", "mint", signers[3].address, 10**6 * USD)
                await chain.transact(owner, "TestUSD", "approve", at["MinerRegistry"], 1000 * USD)
                await chain.transact(
                    signers[3], "TestUSD", "approve", at["ToleranceGame"], 10**6 * USD
                )
                proof = signing.sign(
                    operator,
                    domain,
                    signing.OperatorProof(owner=owner.address, operator=operator.address),
                )
                await chain.transact(
                    owner, "MinerRegistry", "register", 500 * USD, operator.address, proof
                )
                return at
            finally:
                await chain.close()

        at = asyncio.run(run())
        bench = cls(
            url,
            at,
            signers[3].address,
            signers[1].address,
            signers[2].address,
            signers[4].address,
            [],
        )
        bench.rpc("anvil_impersonateAccount", [at["TaskRegistry"]])
        bench.rpc("anvil_setBalance", [at["TaskRegistry"], hex(10**20)])
        bench.rpc(
            "anvil_setCode", [at["TaskRegistry"], "0x00"]
        )  # it hears `resolve` and says nothing
        return bench

    @property
    def parameters(self) -> GameParameters:
        p = PATIENT
        return GameParameters(p.bond, p.turn_s, p.payout_delay_s, p.slash_bps)

    # --- the node ---

    def rpc(self, method: str, params: list[Any]) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        if "error" in found:
            data = found["error"].get("data")
            if isinstance(data, str) and data.startswith("0x") and len(data) >= 10:
                raise Refused(error_names().get(data[2:10], data))
            raise RuntimeError(f"{method}: {found['error']}")
        return found["result"]

    @property
    def now(self) -> int:
        return int(self.rpc("eth_getBlockByNumber", ["latest", False])["timestamp"], 16)

    def send(
        self,
        sender: str,
        contract: str,
        name: str,
        args: Sequence[Any],
        at_s: int,
    ) -> int:
        """A transaction in a block of time `at_s`; its gas. Raises Refused where it reverts."""
        data = calldata(contract, name, args)
        call = {"from": sender, "to": self.at[contract], "data": "0x" + data.hex(), "gas": hex(GAS)}
        self.rpc("eth_call", [call, "latest", {}, {"time": hex(at_s)}])
        self.rpc("evm_setNextBlockTimestamp", [at_s])
        sent = self.rpc("eth_sendTransaction", [call])
        deadline = time.monotonic() + 30
        while (receipt := self.rpc("eth_getTransactionReceipt", [sent])) is None:
            assert time.monotonic() < deadline, f"{name} was not mined"
            time.sleep(0.002)
        assert receipt["status"] == "0x1", name
        gas = int(receipt["gasUsed"], 16)
        self.gas_used.append((name, gas, len(data)))
        return gas

    def read(self, contract: str, name: str, args: Sequence[Any]) -> Any:
        data = calldata(contract, name, args)
        found = self.rpc(
            "eth_call", [{"to": self.at[contract], "data": "0x" + data.hex()}, "latest"]
        )
        (entry,) = [
            e
            for e in artifact(contract)["abi"]
            if e.get("name") == name and e["type"] == "function" and len(e["inputs"]) == len(args)
        ]
        types = [collapse_if_tuple(e) for e in entry["outputs"]]
        return decode(types, bytes.fromhex(found[2:]))[0]

    # --- models ---

    def register(self, case: Case, tag: int = 0) -> bytes:
        """The model of a case, registered with its program as its profile. Returns its id."""
        program = case.program.to_bytes()
        profile = keccak(program)
        p = case.program
        spec = (
            keccak(b"toy" + tag.to_bytes(4, "big")),
            len(p.layer_types),
            p.hidden,
            p.heads,
            p.key_heads,
            p.inner,
            p.vocab,
            p.context,
            1,
            1,
            keccak(b"float32"),
            profile,
            commit.merkle_root(case.part_roots),
            bytes(32),
        )
        model = keccak(b"".join(v if isinstance(v, bytes) else v.to_bytes(32, "big") for v in spec))
        if not self.read("ModelRegistry", "exists", [model]):
            self.send(self.owner, "ProgramStore", "store", [program], self.now + 1)
            self.send(
                self.owner, "ModelRegistry", "register", [spec, list(case.part_roots)], self.now + 1
            )
        return model


_JOBS = iter(range(1, 10**9))


@dataclass
class TwinGame:
    """One dispute in both twins.

    Moves raise GameError if both refuse, and AssertionError if only one does.
    """

    bench: Bench
    game: Game
    id: bytes
    receipt: StageReceipt
    model: bytes
    job: bytes

    @classmethod
    def open(
        cls,
        bench: Bench,
        case: Case,
        leaves: Sequence[bytes],
        model: bytes,
        order_hash: str = "",
    ) -> TwinGame:
        """As TaskRegistry opens it. `leaves` are the hashes under the receipt's `requestsRoot`,
        two for each request."""
        root = commit.root_of_hashes(leaves)
        job = next(_JOBS).to_bytes(32, "big")
        receipt = StageReceipt(
            order_hash=order_hash or commit.to_hex(job),
            plan_hash=commit.to_hex(job),
            stage=0,
            layer_from=case.claim.layer_from,
            layer_to=case.claim.layer_to,
            shard_root=commit.to_hex(job),
            input_root=commit.to_hex(job),
            output_root=commit.to_hex(job),
            requests_root=commit.to_hex(root),
            requests=len(leaves) // 2,
            tokens_in=1,
            tokens_out=1,
            started_at=0,
            signed_at=0,
        )
        now = bench.now + 1
        receipt_hash = commit.unhex(signing.struct_hash(receipt))
        pool = bench.read("MinerRegistry", "poolOf", [bench.owner])
        number = pool[1]  # what the next dispute is called
        ref = (
            job,
            0,
            0,
            number,
            bench.owner,
            bench.operator,
            bench.accuser,
            bench.requester,
            receipt_hash,
            root,
            model,
            [],
            [],
        )
        parties = [bench.owner, bench.at["ToleranceGame"], bench.accuser, bench.requester, USD]
        bench.send(bench.at["TaskRegistry"], "MinerRegistry", "openDispute", parties, now)
        bench.gas_used.pop()  # `TaskRegistry.dispute` pays for it
        now += 1
        bench.send(bench.at["TaskRegistry"], "ToleranceGame", "open", [ref], now)
        identity = bytes(bench.read("ToleranceGame", "disputeIdOf", [job, 0, receipt_hash, 0]))
        accused = frozenset((bench.owner, bench.operator))
        game = opened(
            bench.parameters,
            now,
            bench.accuser,
            accused,
            bench.requester,
            root,
            len(leaves) // 2,
            order_hash,
        )
        return cls(bench, game, identity, receipt, model, job)

    def move(
        self,
        caller: str,
        name: str,
        args: Sequence[Any],
        twin: Callable[[Game, int], Game],
        at_s: int | None = None,
        named: bool = True,
    ) -> None:
        now = self.bench.now + 1 if at_s is None else at_s
        refused: GameError | None = None
        try:
            after = twin(self.game, now)
        except GameError as error:
            refused, after = error, self.game
        try:
            whole = [self.id, *args] if named else args
            self.bench.send(caller, "ToleranceGame", name, whole, now)
        except Refused as error:
            assert refused is not None, f"{name}: only the contract refuses, with {error.name}"
            assert error.name in ALIASES.get(refused.name, {refused.name}), (
                name,
                error.name,
                refused.name,
            )
            raise refused from None
        assert refused is None, f"{name}: only the state machine refuses, with {refused}"
        self.game = after
        self.compare()

    def compare(self) -> None:
        (
            accused,
            phase,
            status,
            ends,
            child,
            level,
            _accuser,
            count,
            index,
            parts,
            part,
            asks,
            bound,
            node,
            _opening,
        ) = self.bench.read("ToleranceGame", "gameOf", [self.id])
        game = self.game
        assert accused == self.bench.owner.lower()
        assert (phase, status, asks) == (game.phase, game.verdict, game.asks)
        if phase == Phase.RULED:
            assert ends == game.payout_at
        elif phase != Phase.EXECUTED:
            assert ends == game.ends_at
        if phase in (Phase.PICKING, Phase.OPENING):
            assert game.case is not None
            assert count == game.case.layout.chunks
            assert game.node is not None
            assert (level, index, node) == (game.node.level, game.node.index, game.node.hash)
            assert bound == binding(self.model, game.case.claim)
            if phase == Phase.OPENING:
                assert child == game.child
        if phase in (Phase.PROVING, Phase.PICKING_PART, Phase.PROVING_PART):
            assert game.place is not None
            packed = packed_place(game.place, game.tokens)
            if phase == Phase.PROVING:
                assert node == packed
            else:
                assert node == statement(packed_place(game.place), game.stated)
                assert parts == len(game.stated) // 8
        if phase == Phase.PROVING_PART:
            assert part == game.part

    # --- moves ---

    def claim(self, case: Case | None = None) -> tuple[Any, ...]:
        found = case or self.game.case
        assert found is not None
        return claim_tuple(found.claim)

    @property
    def receipt_tuple(self) -> tuple[Any, ...]:
        values = msgspec.to_builtins(self.receipt).values()
        return tuple(commit.unhex(v) if isinstance(v, str) else v for v in values)

    def blank(self, name: str, case: Case, caller: str = "", at_s: int | None = None) -> None:
        """A move of empty arguments, by the accuser or the accused unless `caller` says who."""
        accused = name in ("reveal", "plead", "pick", "point", "point_with", "pick_part")
        caller = caller or (self.bench.owner if accused else self.bench.accuser)
        moves: dict[str, Callable[[], None]] = {
            "accuse": lambda: self.accuse(case, 0, [], [], caller, at_s),
            "plead": lambda: self.plead(0, caller, at_s),
            "restate": lambda: self.restate(case, [], caller, at_s),
            "pick": lambda: self.pick(0, caller, at_s),
            "point": lambda: self.point(Place(0, 0), caller, at_s),
            "open_node": lambda: self.open_node([], [], caller, at_s),
            "open_chunks": lambda: self.open_chunks([], [], caller, at_s),
            "point_with": lambda: self.point(Place(0, 0), caller, at_s, b"1234"),
            "ask": lambda: self.ask(blank_rows(case), 0, [], [], caller, at_s),
            "reveal": lambda: self.reveal([], caller, at_s, blank_rows(case)),
            "prove_malformed": lambda: self.prove_malformed(
                blank_rows(case), 0, [], Spot(Boundary.OUT, 0), RowOpening(), caller, at_s
            ),
            "prove": lambda: self.prove(Evidence(), caller, at_s, case),
            "expand": lambda: self.expand(b"", caller, at_s),
            "prove_sum": lambda: self.prove_sum(Evidence(), b"", caller, at_s, case),
            "pick_part": lambda: self.pick_part(0, caller, at_s),
            "prove_part": lambda: self.prove_part(Evidence(), RunOpening(), caller, at_s, case),
        }
        moves[name]()

    def accuse(
        self,
        case: Case,
        position: int,
        proof: list[bytes],
        below: list[bytes],
        caller: str = "",
        at_s: int | None = None,
        span: SignedSpan | None = None,
    ) -> None:
        caller = caller or self.bench.accuser
        signed = request_tuple(case.claim.leaf, position, proof, span)
        self.move(
            caller,
            "accuse",
            [self.model, self.receipt_tuple, claim_tuple(case.claim), signed, below],
            lambda g, now: g.accuse(now, caller, case, position, proof, below, span),
            at_s,
        )

    def plead(self, seed: int, caller: str = "", at_s: int | None = None) -> None:
        caller = caller or self.bench.operator
        self.move(caller, "plead", [seed], lambda g, now: g.plead(now, caller, seed), at_s)

    def restate(
        self, case: Case, below: list[bytes], caller: str = "", at_s: int | None = None
    ) -> None:
        caller = caller or self.bench.accuser
        self.move(
            caller,
            "restate",
            [self.model, claim_tuple(case.claim), below],
            lambda g, now: g.restate(now, caller, case, below),
            at_s,
        )

    def pick(self, child: int, caller: str = "", at_s: int | None = None) -> None:
        caller = caller or self.bench.operator
        self.move(caller, "pick", [child], lambda g, now: g.pick(now, caller, child), at_s)

    def open_node(
        self, below: list[bytes], proof: list[bytes], caller: str = "", at_s: int | None = None
    ) -> None:
        caller = caller or self.bench.accuser
        self.move(
            caller,
            "openNode",
            [below, proof],
            lambda g, now: g.open_node(now, caller, below, proof),
            at_s,
        )

    def open_chunks(
        self, shown: list[bytes], proof: list[bytes], caller: str = "", at_s: int | None = None
    ) -> None:
        caller = caller or self.bench.accuser
        self.move(
            caller,
            "openChunks",
            [b"".join(shown), bytes(map(len, shown)), proof],
            lambda g, now: g.open_chunks(now, caller, shown, proof),
            at_s,
        )

    def ask(
        self,
        rows: SignedRows,
        position: int,
        proof: list[bytes],
        spots: Sequence[Spot],
        caller: str = "",
        at_s: int | None = None,
        span: SignedSpan | None = None,
    ) -> None:
        caller = caller or self.bench.accuser
        signed = request_tuple(rows.leaf, position, proof, span)
        self.move(
            caller,
            "ask",
            [self.receipt_tuple, rows_tuple(self.model, rows), signed, spot_tuples(spots)],
            lambda g, now: g.ask(now, caller, rows, position, proof, spots, span),
            at_s,
        )

    def reveal(
        self,
        openings: Sequence[RowOpening],
        caller: str = "",
        at_s: int | None = None,
        rows: SignedRows | None = None,
    ) -> None:
        caller = caller or self.bench.operator
        asked = self.game.asked or (rows, ())
        assert asked[0] is not None
        self.move(
            caller,
            "reveal",
            [
                rows_tuple(self.model, asked[0]),
                spot_tuples(asked[1]),
                [row_tuple(o) for o in openings],
            ],
            lambda g, now: g.reveal(now, caller, openings),
            at_s,
        )

    def prove_malformed(
        self,
        rows: SignedRows,
        position: int,
        proof: list[bytes],
        spot: Spot,
        opening: RowOpening,
        caller: str = "",
        at_s: int | None = None,
        span: SignedSpan | None = None,
    ) -> None:
        caller = caller or self.bench.accuser
        self.move(
            caller,
            "proveMalformed",
            [
                self.receipt_tuple,
                rows_tuple(self.model, rows),
                request_tuple(rows.leaf, position, proof, span),
                spot_tuples([spot])[0],
                row_tuple(opening),
            ],
            lambda g, now: g.prove_malformed(
                now, caller, rows, position, proof, spot, opening, span
            ),
            at_s,
        )

    def accuse_token(
        self,
        case: Case,
        position: int,
        proof: list[bytes],
        below: list[bytes],
        drawn: Drawn,
        order: Order,
        signature: bytes = b"",
    ) -> None:
        caller = self.bench.accuser
        self.move(
            caller,
            "accuseToken",
            [
                self.model,
                self.receipt_tuple,
                claim_tuple(case.claim),
                request_tuple(case.claim.leaf, position, proof),
                below,
                drawn_tuple(drawn, order, signature),
            ],
            lambda g, now: g.accuse_token(now, caller, case, position, proof, below, drawn),
        )

    def show_opening(
        self,
        order: Order,
        shown: RequestOpening,
        opening: RequestOpening,
        signature: bytes,
        is_signed: bool,
    ) -> None:
        caller = self.bench.owner
        self.move(
            caller,
            "showOpening",
            [plain_tuple(order), plain_tuple(shown), plain_tuple(opening), signature],
            lambda g, now: g.show_opening(now, caller, opening, is_signed),
        )

    def point(
        self, place: Place, caller: str = "", at_s: int | None = None, tokens: bytes = b""
    ) -> None:
        caller = caller or self.bench.owner
        if tokens:
            self.move(
                caller,
                "pointWith",
                [tuple(place), tokens],
                lambda g, now: g.point_with(now, caller, place, tokens),
                at_s,
            )
            return
        self.move(caller, "point", [tuple(place)], lambda g, now: g.point(now, caller, place), at_s)

    def prove(
        self,
        evidence: Evidence,
        caller: str = "",
        at_s: int | None = None,
        case: Case | None = None,
    ) -> None:
        caller = caller or self.bench.accuser
        self.move(
            caller,
            "prove",
            [self.model, self.claim(case), evidence_tuple(evidence)],
            lambda g, now: g.prove(now, caller, evidence),
            at_s,
        )

    def expand(self, stated: bytes, caller: str = "", at_s: int | None = None) -> None:
        caller = caller or self.bench.accuser
        self.move(caller, "expand", [stated], lambda g, now: g.expand(now, caller, stated), at_s)

    def prove_sum(
        self,
        evidence: Evidence,
        stated: bytes | None = None,
        caller: str = "",
        at_s: int | None = None,
        case: Case | None = None,
    ) -> None:
        caller = caller or self.bench.accuser
        place, sums = self.game.place or Place(0, 0), self.game.stated if stated is None else stated
        self.move(
            caller,
            "proveSum",
            [self.model, self.claim(case), tuple(place), evidence_tuple(evidence), sums],
            lambda g, now: g.prove_sum(now, caller, evidence, sums),
            at_s,
        )

    def pick_part(self, part: int, caller: str = "", at_s: int | None = None) -> None:
        caller = caller or self.bench.operator
        self.move(caller, "pickPart", [part], lambda g, now: g.pick_part(now, caller, part), at_s)

    def prove_part(
        self,
        evidence: Evidence,
        shown: RunOpening | None = None,
        caller: str = "",
        at_s: int | None = None,
        case: Case | None = None,
    ) -> None:
        caller = caller or self.bench.accuser
        opening = shown or show_stated(self.game.stated, self.game.part)
        place = self.game.place or Place(0, 0)
        self.move(
            caller,
            "provePart",
            [
                self.model,
                self.claim(case),
                tuple(place),
                evidence_tuple(evidence),
                opening_tuple(opening),
            ],
            lambda g, now: g.prove_part(now, caller, evidence, opening),
            at_s,
        )

    def timeout(self, at_s: int | None = None) -> None:
        self.move(self.bench.requester, "timeout", [], lambda g, now: g.timeout(now), at_s)

    def execute(self, at_s: int | None = None) -> None:
        """Both credit the bond to the same party."""
        before = {
            a: self.bench.read("ToleranceGame", "creditOf", [a])
            for a in (self.bench.accuser, self.bench.owner)
        }
        paid: dict[str, int] = {}

        def twin(game: Game, now: int) -> Game:
            after, found = game.execute(now)
            paid.update(found)
            return after

        receipt_hash = commit.unhex(signing.struct_hash(self.receipt))
        args = [self.job, 0, receipt_hash, 0]
        self.move(self.bench.requester, "execute", args, twin, at_s, named=False)
        for name, account in (("accuser", self.bench.accuser), ("accused", self.bench.owner)):
            now_has = self.bench.read("ToleranceGame", "creditOf", [account])
            assert now_has - before[account] == paid.get(name, 0)


def with_root(claim: Claim, root: bytes) -> Claim:
    return replace(claim, trace_root=root)
