"""The records tell what an earlier run came to: which answers are whole, which go on, and where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from client.jobs.earlier import left_jobs, taken_up, whole_answers
from client.jobs.failover import Ongoing
from client.orders.orders import Prompt, PromptBatch
from client.pipeline.pipeline import Match
from client.records.store import ClientStore
from core.protocol.types import SamplingParams
from tests.town.orders import prompts, signed_order
from tests.town.stages import Stages


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClientStore]:
    store = ClientStore(tmp_path / "client.sqlite")
    yield store
    store.close()


def job_of(asked: list[Prompt], nonce: int) -> tuple[Match, PromptBatch]:
    batch = PromptBatch.of(asked)
    found = Stages().match(batch, signed_order(batch, nonce))
    return Match(found.job_id, found.signed, found.plan, ("a:1", "b:2", "c:3"), "0xab"), batch


def random_bytes(count: int) -> bytes:
    return bytes(range(count))


def test_a_job_that_was_under_way_runs_on_where_its_answers_are_not_whole(
    store: ClientStore,
) -> None:
    job, batch = job_of(prompts(3), 1)
    store.add_job("sub", job, batch, 1)
    store.finish_request(job.job_id, 1, [7, 8], "stop")
    (left,) = left_jobs(store, "sub")
    assert left.match == job and left.batch == batch
    assert list(left.known) == [1]
    assert (left.known[1].tokens, left.known[1].finish, left.known[1].is_done) == (
        [7, 8],
        "stop",
        True,
    )
    assert [answer.prompt.ids for answer in left.answers] == [one.ids for one in batch.prompts]
    (whole,) = whole_answers(store, "sub")
    assert (whole.custom_id, whole.tokens, whole.finish) == ("p1", (7, 8), "stop")
    store.set_state(job.job_id, "acknowledged")
    assert not left_jobs(store, "sub") and not left_jobs(store, "other")


def test_an_answer_that_went_on_in_a_later_job_ends_in_the_first_with_what_it_gave(
    store: ClientStore,
) -> None:
    asked = prompts(2, max_new_tokens=6)
    job, batch = job_of(asked, 1)
    store.add_job("sub", job, batch, 1)
    going = Ongoing(asked[1], [40, 41], [None] * 2, key_index=1)
    second, rest = job_of([going.next_prompt(random_bytes)], 2)
    store.add_job("sub", second, rest, 2)
    third = Ongoing(asked[1], [40, 41, 42], [None] * 3, key_index=1)
    last, last_batch = job_of([third.next_prompt(random_bytes)], 3)
    store.add_job("sub", last, last_batch, 3)
    store.finish_request(last.job_id, 0, [43, 44, 45], "length")
    first, middle, newest = left_jobs(store, "sub")
    assert list(first.known) == [1] and not first.known[1].is_done
    assert first.known[1].tokens == [40, 41] and middle.known[0].tokens == [42]
    assert newest.known[0].is_done and newest.answers[0].tokens == [40, 41, 42]
    assert newest.answers[0].prompt.ids == asked[1].ids
    assert newest.answers[0].prompt.sampling.max_new_tokens == 6
    (whole,) = whole_answers(store, "sub")
    assert (whole.tokens, whole.finish) == ((40, 41, 42, 43, 44, 45), "length")


def test_what_was_paid_for_is_not_asked_for_again(store: ClientStore) -> None:
    asked = prompts(3, max_new_tokens=6)
    job, batch = job_of(asked, 1)
    store.add_job("sub", job, batch, 1)
    store.finish_request(job.job_id, 1, [7, 8], "")  # cut, and acknowledged
    store.set_state(job.job_id, "acknowledged")
    fresh = [
        Prompt(one.custom_id, one.ids, SamplingParams(max_new_tokens=6, seed=9), bytes(32))
        for one in asked
    ]
    new, begun, other = taken_up(store, "sub", fresh)
    assert (new.prompt, new.tokens) == (fresh[0], []) and other.prompt == fresh[2]
    assert begun.tokens == [7, 8] and begun.place == (job.order_hash, 1)
    following = begun.next_prompt(random_bytes)
    assert following.ids == (*asked[1].ids, 7, 8)
    wanted = msgspec.structs.replace(asked[1].sampling, max_new_tokens=4, key_index=1, first_step=2)
    assert following.sampling == wanted, "it draws on as it began, whatever is asked for now"


def test_an_answer_that_is_all_here_and_not_signed_is_whole(store: ClientStore) -> None:
    asked = prompts(1, max_new_tokens=2)
    job, batch = job_of(asked, 1)
    store.add_job("sub", job, batch, 1)
    store.finish_request(job.job_id, 0, [7, 8], "")
    (whole,) = whole_answers(store, "sub")
    assert (whole.tokens, whole.finish) == ((7, 8), "length")
