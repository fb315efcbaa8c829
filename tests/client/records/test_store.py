"""Jobs, answers and receipts survive a restart in a file that is the owner's alone."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from client.orders.orders import PromptBatch
from client.pipeline.pipeline import Match
from client.records.store import ClientStore, match_of, receipt_hash
from core.protocol import ids
from core.protocol.errors import IdInvalid
from tests.town.orders import prompts, signed_order
from tests.town.stages import Stages


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "client-test.sqlite"


def match(count: int = 3, nonce: int = 1) -> tuple[Stages, Match, PromptBatch]:
    stages, batch = Stages(), PromptBatch.of(prompts(count))
    found = stages.match(batch, signed_order(batch, nonce))
    endpoints = ("a:1", "b:2", "c:3")
    return stages, Match(found.job_id, found.signed, found.plan, endpoints, "0xab"), batch


def test_everything_survives_a_restart(path: Path) -> None:
    stages, job, batch = match()
    store = ClientStore(path)
    store.add_job("sub", job, batch, 100)
    store.finish_request(job.job_id, 1, [7, 8], "stop")
    receipts = [stages.receipt(s, {1: stages.answer(1)}) for s in range(3)]
    store.add_receipts(job.job_id, receipts)
    store.set_state(job.job_id, "acknowledged")
    store.close()

    store = ClientStore(path)
    (row,) = store.jobs()
    assert match_of(row) == job
    assert (row.state, row.submission, row.created_at) == ("acknowledged", "sub", 100)
    requests = store.requests(job.job_id)
    assert [r.request_index for r in requests] == [0, 1, 2]
    assert (requests[1].tokens, requests[1].finish) == ("[7,8]", "stop")
    assert requests[0].finish == ""
    assert requests[2].salt == "0x" + batch.prompts[2].salt.hex()
    assert msgspec.json.decode(requests[2].prompt_ids) == list(batch.prompts[2].ids)
    assert [signed for _, signed in store.receipts(job.job_id)] == receipts
    store.close()


def test_files_are_the_owners_alone(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o644)
    store = ClientStore(path)
    store.add_job("sub", *match()[1:], 1)
    files = list(path.parent.iterdir())
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
    assert len(files) > 1, "the write-ahead log too"
    store.close()


def test_receipts_are_kept_once_and_never_replaced(path: Path) -> None:
    stages, job, batch = match()
    store = ClientStore(path)
    store.add_job("sub", job, batch, 1)
    signed = stages.receipt(0, {1: stages.answer(1)})
    store.add_receipts(job.job_id, [signed, signed])
    forged = msgspec.structs.replace(signed, signature="0x" + "00" * 65)
    store.add_receipts(job.job_id, [forged])
    assert [kept for _, kept in store.receipts()] == [signed]
    store.close()


def test_the_end_of_a_request_and_its_receipts_are_kept_together_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, job, batch = match()
    store = ClientStore(path)
    store.add_session("keeper", job, 1)
    store.add_request(job.job_id, 4, batch.prompts[0])
    signed = stages.receipt(0, {1: stages.answer(1)})
    with pytest.raises(LookupError, match="no request 5"):
        store.finish_request(job.job_id, 5, [7], "stop", [signed])
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="midway"):
        patch.setattr("client.records.store.receipt_hash", lambda signed: int("midway"))
        store.finish_request(job.job_id, 4, [7], "stop", [signed])
    (row,) = store.requests(job.job_id)
    assert (row.request_index, row.tokens, row.finish, store.receipts()) == (4, "[]", "", [])
    store.finish_request(job.job_id, 4, [7], "stop", [signed])
    (row,) = store.requests(job.job_id)
    assert (row.tokens, row.finish) == ("[7]", "stop")
    assert [kept for _, kept in store.receipts()] == [signed]
    store.close()


def test_receipts_tell_request_and_whole_job_apart(path: Path) -> None:
    stages, job, batch = match()
    store = ClientStore(path)
    store.add_job("sub", job, batch, 1)
    answers = {i: stages.answer(i) for i in range(3)}
    store.add_receipts(job.job_id, [stages.receipt(0, {2: answers[2]}), stages.receipt(0, answers)])
    assert [row.request_index for row, _ in store.receipts(job.job_id)] == [-1, 2]
    assert store.receipts("0x" + "00" * 32) == []
    store.close()


def test_jobs_are_found_by_any_form_and_unique_prefix(path: Path) -> None:
    store = ClientStore(path)
    jobs = [match(nonce=n)[1] for n in range(12)]
    batch = match()[2]
    for number, job in enumerate(jobs):
        store.add_job("sub", job, batch, 1000 + number // 6)
    assert [row.job_id for row in store.jobs()] == [job.job_id for job in reversed(jobs)]
    for job in jobs:
        printed = ids.short(ids.Kind.JOB, job.job_id)
        for typed in (job.job_id, printed, printed[4:].lower(), job.job_id[:14]):
            assert store.find_job(typed).job_id == job.job_id
    for typed in ("job_", "rcpt_ABC", "0x", "zzzzzzzzz", ""):
        with pytest.raises(IdInvalid):
            store.find_job(typed)
    store.close()


def test_receipt_is_found_by_prefix(path: Path) -> None:
    stages, job, batch = match()
    store = ClientStore(path)
    store.add_job("sub", job, batch, 1)
    receipts = [stages.receipt(s, {0: stages.answer(0)}) for s in range(3)]
    store.add_receipts(job.job_id, receipts)
    typed = ids.short(ids.Kind.RECEIPT, receipt_hash(receipts[1]))
    row, signed = store.find_receipt(typed)
    assert signed == receipts[1]
    assert (row.job_id, row.stage) == (job.job_id, 1)
    store.close()
