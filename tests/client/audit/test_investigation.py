"""An auditor finds a job by any name, reaches its stages, and accuses the guilty one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client.audit.evidence import Delegation
from client.audit.investigation import (
    Investigation,
    describe_cost,
    endpoints_of,
    investigate,
    read_delegation,
    resolve_job,
    source_of,
)
from client.audit.rerun import AuditEffort, RequestFinding, StageFinding
from client.commands.judge.verdicts import STATUSES, _accused
from client.context import Context
from client.disputes.jury_dispute import challenge_cost, check_standing, open_dispute
from client.orders.orders import PromptBatch
from client.pipeline.pipeline import Match
from client.records.store import receipt_hash
from core.protocol import ids, signing
from core.protocol import types as t
from core.protocol.errors import (
    CheckFailed,
    ConfigError,
    IdInvalid,
    MatcherUnreachable,
    ModelMissing,
    ModelUnknown,
    ModelUnsupported,
    TokenShort,
    UsageError,
)
from core.runtime.folders import Folders
from core.runtime.settings import load
from tests.client.keepers import Keepers
from tests.town.chain import FakeChain
from tests.town.orders import DOMAIN, MODEL_ID, NOW_S, REQUESTER, SPANS, answer_of, key, prompts

ROOT = Path(__file__).resolve().parents[3]


class Miners:
    """The matcher's list of machines."""

    def __init__(self, found: list[dict[str, Any]] | Exception) -> None:
        self.found = found

    async def miners(self) -> list[dict[str, Any]]:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def close(self) -> None: ...


@pytest.fixture
async def keepers() -> AsyncIterator[Keepers]:
    from core.protocol import commit

    batch = PromptBatch.of(prompts(2))
    keepers = Keepers(batch, SPANS)
    for index, prompt in enumerate(batch.prompts):
        answer = answer_of(prompt)
        middle = (bytes([index]) * 8 * len(answer.fed_ids), 8)
        fed, produced = (commit.token_bytes(x) for x in (answer.fed_ids, answer.tokens))
        boundaries = [(fed, 4), middle, middle, (produced, 4)]
        for stage in range(3):
            keepers.rows[stage, "in", index] = boundaries[stage]
            keepers.rows[stage, "out", index] = boundaries[stage + 1]
        keepers.rows[2, "states", index] = (bytes([index]) * 8 * len(answer.tokens), 8)
    keepers.sign_all()
    await keepers.start()
    yield keepers
    await keepers.close()


@pytest.fixture
def context(keepers: Keepers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    settings = load(
        flags={"network.models.tiny": MODEL_ID}, environ={}, folders=Folders.at(tmp_path)
    )
    chain = FakeChain()
    chain.match(keepers.order, keepers.plan)
    chain.answers |= dict.fromkeys(("JuryArbitrator.bond", "JuryArbitrator.bondBps"), 30)
    chain.answers |= {"JuryArbitrator.fee": 12}
    context = Context(settings, chain)
    found = [
        {"operator": o.address, "endpoint": keepers.evidence()._endpoints[o.address.lower()]}
        for o in keepers.operators
    ]
    say(monkeypatch, [*found, {"operator": None}, {"operator": "0x1", "endpoint": ""}])
    return context


def say(monkeypatch: pytest.MonkeyPatch, miners: list[dict[str, Any]] | Exception) -> None:
    monkeypatch.setattr(Context, "matcher", lambda self: Miners(miners))


def keep_job(context: Context, keepers: Keepers, *, receipts: bool) -> None:
    order = keepers.order
    signed = t.SignedOrder(order, signing.sign(REQUESTER, DOMAIN, order))
    endpoints = ("old:1", "old:2", "old:3")
    store = context.store()
    match = Match(keepers.case.job_id, signed, keepers.plan, endpoints, "0xt")
    store.add_job("sub", match, keepers.batch, NOW_S)
    if receipts:
        store.add_receipts(match.job_id, [keepers.receipts[s][0] for s in range(3)])
    store.close()


async def test_job_is_found_by_receipt_job_and_chain(context: Context, keepers: Keepers) -> None:
    job_id = keepers.case.job_id
    printed = ids.short(ids.Kind.JOB, job_id)
    assert await resolve_job(context, printed) == job_id, "on chain alone"
    keep_job(context, keepers, receipts=True)
    receipt = ids.short(ids.Kind.RECEIPT, receipt_hash(keepers.receipts[1][0]))
    for typed in (printed, printed.lower(), job_id, receipt):
        assert await resolve_job(context, typed) == job_id
    for typed in ("job_0000000", "rcpt_0000000", "nonsense"):
        with pytest.raises(IdInvalid):
            await resolve_job(context, typed)


async def test_endpoints_are_those_of_now_else_those_of_then(
    context: Context, keepers: Keepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = await endpoints_of(context, keepers.case)
    assert {o.address.lower() for o in keepers.operators} <= set(now)
    keep_job(context, keepers, receipts=False)
    assert await endpoints_of(context, keepers.case) == now
    say(monkeypatch, [])
    then = await endpoints_of(context, keepers.case)
    assert sorted(then.values()) == ["old:1", "old:2", "old:3"]
    for error in (MatcherUnreachable("gone"), ConfigError("no matcher")):
        say(monkeypatch, error)
        assert await endpoints_of(context, keepers.case) == then


async def test_nobody_to_ask_for_endpoints_is_an_error(
    context: Context, keepers: Keepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, MatcherUnreachable("gone"))
    with pytest.raises(MatcherUnreachable):
        await endpoints_of(context, keepers.case)


async def look(context: Context, keepers: Keepers) -> Investigation:
    typed = ids.short(ids.Kind.JOB, keepers.case.job_id)
    return await investigate(context, REQUESTER, typed, None, lambda *_: None, rerun=False)


async def test_receipts_come_from_the_stages_or_from_our_own_records(
    context: Context, keepers: Keepers
) -> None:
    found = await look(context, keepers)
    whole = [keepers.receipts[stage][0] for stage in range(3)]
    assert (found.case, found.pipelines, found.findings) == (keepers.case, [whole], [])
    assert found.guilty is None
    keep_job(context, keepers, receipts=True)
    keepers.refuse(0, 1, 2)
    assert (await look(context, keepers)).pipelines == [whole]


async def test_receipts_that_do_not_chain_are_refused(context: Context, keepers: Keepers) -> None:
    for index in (0, 1):
        keepers.rows[1, "in", index] = (b"\x07" * len(keepers.rows[1, "in", index][0]), 8)
    keepers.sign_all()
    with pytest.raises(CheckFailed) as caught:
        await look(context, keepers)
    assert caught.value.details["field"] == "input_root"


def finding(stage: int, *, fault: int | None = None, withheld: str = "") -> StageFinding:
    requests = tuple(RequestFinding(i, i == fault, (), 0.5, 1.0, None) for i in (0, 1))
    return StageFinding(stage, "0x", SPANS[stage], requests, withheld)


async def test_accused_receipt_is_over_the_request_that_convicts(keepers: Keepers) -> None:
    singles = [
        [keepers.sign(stage, [keepers.leaf(stage, index)]) for stage in range(3)]
        for index in (0, 1)
    ]
    found = Investigation(
        keepers.case, singles, [finding(0), finding(1, fault=1), finding(2, fault=0)]
    )
    assert found.guilty is found.findings[1]
    assert _accused(found, None) is singles[1][1]
    assert _accused(found, 2) is singles[0][2]
    assert _accused(found, 0) is singles[0][0]
    hidden = Investigation(keepers.case, singles, [finding(0, withheld="gone")])
    assert _accused(hidden, None) is singles[0][0]
    with pytest.raises(UsageError, match="no stage 3"):
        _accused(found, 3)
    with pytest.raises(UsageError, match="no stage is at fault"):
        _accused(Investigation(keepers.case, singles, [finding(0)]), None)


async def test_cost_is_shown_beside_what_serving_took(keepers: Keepers) -> None:
    whole = [keepers.receipts[stage][0] for stage in range(3)]
    receipt = whole[1].receipt
    served_s = max(1, receipt.signed_at - receipt.started_at)
    efforts = {1: AuditEffort(in_float64=2, spent_s=0.1 * served_s)}
    found = Investigation(keepers.case, [whole], [finding(0), finding(1)], efforts)
    assert describe_cost(found, 1)["of_serving"] == f"10.0 % of {served_s} s"
    assert describe_cost(found, 0) == {"re_run_s": "–", "of_serving": "–"}, "it was not looked at"


async def test_weights_are_found_by_model_and_profile(context: Context, keepers: Keepers) -> None:
    case, settings = keepers.case, context.settings

    def of(**changes: Any) -> Any:
        order = msgspec.structs.replace(case.order, **changes)
        return source_of(context, type(case)(case.job_id, order, case.plan))

    with pytest.raises(ModelMissing):
        await of()
    folder = settings.folders.cache / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    assert (await of()).profile.name == "fp32"
    assert (await of()).model_dir == folder
    with pytest.raises(ModelUnknown):
        await of(model_id="0x" + "ee" * 32)
    with pytest.raises(ModelUnsupported, match="numerics profile"):
        await of(numerics_profile="0x" + "ee" * 32)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        '"x"',
        "{}",
        '{"delegation": 3, "signature": "0x"}',
        '{"result": []}',
        '{"delegation": {"orderHash": "0x", "auditor": "0x", "expiry": 1}, "signature": "0x"}',
    ],
)
def test_file_that_is_no_delegation_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "delegation.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="is not a delegation"):
        read_delegation(file)
    with pytest.raises(UsageError):
        read_delegation(tmp_path / "missing")
    assert read_delegation(None) is None


# --- the dispute itself ---


async def test_only_requester_auditor_and_delegate_may_dispute(keepers: Keepers) -> None:
    case, auditor = keepers.case, key(60).address
    check_standing(case, REQUESTER.address.lower(), None)
    permission = t.AuditorDelegation(case.order_hash, auditor, NOW_S + 5)
    delegation = Delegation(permission, "0x" + "00" * 65)
    check_standing(case, auditor, delegation)
    elsewhere = Delegation(
        msgspec.structs.replace(permission, order_hash=t.ZERO_HASH), delegation.signature
    )
    for who, allowed in (
        (auditor, None),
        (auditor, elsewhere),
        (key(61).address, delegation),
        (t.ZERO_ADDRESS, None),
    ):
        with pytest.raises(UsageError, match="may not dispute"):
            check_standing(case, who, allowed)


async def test_dispute_pays_bond_and_fee_and_shows_everything(
    context: Context, keepers: Keepers
) -> None:
    chain: Any = context.chain
    accused = keepers.receipts[1][0]
    operator = keepers.plan[1].operator
    chain.stakes[operator] = 10_000
    assert (await challenge_cost(chain, operator)).total == 42
    chain.stakes[operator] = 100_000  # of which 30 in 10,000 are more than the least bond
    assert (await challenge_cost(chain, operator)).total == 312
    chain.stakes[operator] = 10_000
    chain.usd[REQUESTER.address] = 41
    with pytest.raises(TokenShort) as caught:
        await open_dispute(chain, REQUESTER, keepers.case, accused)
    assert (caught.value.have, caught.value.need, caught.value.short_by) == (41, 42, 1)
    assert not chain.sent
    chain.usd[REQUESTER.address] = 42
    await open_dispute(chain, REQUESTER, keepers.case, accused)
    approve, dispute = chain.sent
    assert approve == ("TestUSD", "approve", chain.addresses["JuryArbitrator"], 84)
    assert dispute[:6] == (
        "TaskRegistry",
        "dispute",
        keepers.order,
        list(keepers.plan),
        accused.receipt,
        accused.signature,
    )
    assert dispute[7] == "0x"


def test_verdict_words_are_the_contracts_in_its_order() -> None:
    source = (ROOT / "contracts/src/interfaces/IArbitrator.sol").read_text()
    body = source.split("enum Status {")[1].split("}")[0]
    names = [line.split("//")[0].strip(" ,\n") for line in body.splitlines()]
    expected = ["".join(w.capitalize() for w in status.split()) for status in STATUSES]
    assert [name for name in names if name] == expected


def test_jury_words_are_the_contracts_in_their_order() -> None:
    from client.jury.jury import Phase
    from client.jury.votes import VoteKind

    source = (ROOT / "contracts/src/interfaces/IJuryArbitrator.sol").read_text()
    for kind, enum in (("Phase", Phase), ("Vote", VoteKind)):
        body = source.split(f"enum {kind} {{")[1].split("}")[0]
        names = [line.split("//")[0].strip(" ,\n") for line in body.splitlines()]
        assert [name.upper() for name in names if name] == [e.name.replace("_", "") for e in enum]
