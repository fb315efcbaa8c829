"""Jobs, answers and receipts survive a restart in a file that is the owner's alone."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from client.orders.orders import PromptBatch
from client.pipeline.pipeline import Match
from client.records.store import ClientStore, match_of, receipt_hash, signed_of
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


def test_first_nonce_begins_a_random_word_and_later_ones_count_up(path: Path) -> None:
    account, other = "0x" + "aB" * 20, "0x" + "cd" * 20
    store = ClientStore(path)
    first = store.next_nonce(account, lambda count: b"\xff" * count)
    assert first == 2**62 - 256
    assert [store.next_nonce(account) for _ in range(300)] == [first + n for n in range(1, 301)]
    assert store.next_nonce(account.lower()) == first + 301
    assert store.next_nonce(other, lambda count: b"\x04" * count) != first + 302
    store.close()

    store = ClientStore(path)
    assert store.next_nonce(account) == first + 302
    store.close()


def test_first_nonces_of_two_stores_are_multiples_of_256_and_differ(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        with closing(ClientStore(tmp_path / name)) as store:
            found.append(store.next_nonce("0x" + "ab" * 20))
    assert found[0] != found[1]
    assert all(nonce % 256 == 0 and 0 <= nonce < 2**62 for nonce in found)


def test_renewed_nonces_begin_another_word(path: Path) -> None:
    account = "0x" + "ab" * 20
    with closing(ClientStore(path)) as store:
        store.next_nonce(account, lambda count: bytes(count))
        store.renew_nonces(account, lambda count: bytes(count - 2) + b"\x04\x00")
        assert [store.next_nonce(account) for _ in range(2)] == [256, 257]
        store.renew_nonces("0x" + "cd" * 20, lambda count: bytes(count))
        assert store.next_nonce("0x" + "cd" * 20) == 0


def test_records_of_an_older_version_hand_out_nonces(path: Path) -> None:
    job, batch = match()[1:]
    with closing(ClientStore(path)) as store:
        store.add_job("sub", job, batch, 1)
    with closing(sqlite3.connect(path)) as older:
        older.execute("DROP TABLE client_nonce")
    with closing(ClientStore(path)) as store:
        account = job.signed.order.requester
        assert store.next_nonce(account) + 1 == store.next_nonce(account)
        assert [row.job_id for row in store.jobs()] == [job.job_id]


_TAKES_NONCES = """
import sys
from pathlib import Path
from client.records.store import ClientStore
store = ClientStore(Path(sys.argv[1]))
sys.stdin.readline()
print(*(store.next_nonce("0x" + "ab" * 20) for _ in range(200)))
"""


def test_programs_with_the_same_records_never_get_the_same_nonce(path: Path) -> None:
    ClientStore(path).close()
    pipe = subprocess.PIPE
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", _TAKES_NONCES, str(path)], stdin=pipe, stdout=pipe, text=True
        )
        for _ in range(3)
    ]
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("go\n")
        program.stdin.flush()
    taken = [int(nonce) for one in programs for nonce in one.communicate(timeout=60)[0].split()]
    assert len(taken) == 600
    assert sorted(taken) == list(range(min(taken), min(taken) + 600))


def test_an_order_is_known_from_before_it_is_handed_in(path: Path) -> None:
    _, job, batch = match()
    store = ClientStore(path)
    store.add_order("sub", job.job_id, job.signed, 1, batch)
    (row,) = store.orders()
    assert (row.submission, row.is_session, signed_of(row)) == ("sub", False, job.signed)
    assert not store.jobs() and len(store.requests(job.job_id)) == 3
    store.add_job("sub", job, None, 2)
    assert not store.orders() and len(store.requests(job.job_id)) == 3
    assert match_of(store.jobs()[0]) == job
    store.close()


def test_of_an_order_that_is_refused_nothing_is_left(path: Path) -> None:
    _, job, batch = match()
    store = ClientStore(path)
    store.add_order("sub", job.job_id, job.signed, 1, batch)
    store.forget_order(job.job_id)
    store.forget_order(job.job_id)
    assert not store.orders() and not store.requests(job.job_id)
    store.add_order("keeper", job.job_id, job.signed, 1)
    store.leave_order(job.job_id)
    assert [(row.is_session, row.submission) for row in store.orders()] == [(True, "")]
    store.add_session("keeper", job, 2)
    assert not store.orders() and len(store.unsettled_sessions()) == 1
    store.close()


def test_a_charge_is_written_with_what_it_is_for(path: Path) -> None:
    _, job, batch = match()
    store = ClientStore(path)
    store.add_session("keeper", job, 1)
    store.add_request(job.job_id, 0, batch.prompts[0])
    with pytest.raises(LookupError, match="no request 1"):
        store.finish_request(job.job_id, 1, [7], "stop", cost_units=9)
    assert not store.charges(job.job_id)
    store.finish_request(job.job_id, 0, [7], "stop", cost_units=9)
    store.put_charges(job.job_id, {0: 8, 2: 2**40})
    assert store.charges(job.job_id) == {0: 8, 2: 2**40}
    store.close()


def test_a_dead_programs_submission_becomes_one_others_and_no_second_ones(path: Path) -> None:
    store, other = ClientStore(path), ClientStore(path)
    store.add_submission("sub", "nightly", "dead")
    assert store.adopt_submission("sub", "dead", "first")
    assert not other.adopt_submission("sub", "dead", "second")
    assert not other.adopt_submission("none", "dead", "second")
    known = other.submission("sub")
    assert known is not None and known.keeper == "first"
    store.close()
    other.close()
