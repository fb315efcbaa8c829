"""Do files and batches work as the official client uses them, over errors, restarts and expiry?"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from core.protocol.errors import NoCapacity
from tests.client.gateway.killable import killable
from tests.client.gateway.toy import cost
from tests.client.gateway.world import World

CHAT = "/v1/chat/completions"


def line(number: int, text: str | None = None, **body: Any) -> dict[str, Any]:
    said = {"role": "user", "content": text or f"say:answer {number} 🚀"}
    return {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": CHAT,
        "body": {"model": "toy", "messages": [said], "max_tokens": 40, **body},
    }


def file_of(lines: list[Any]) -> io.BytesIO:
    """A JSONL file; a text is a line as it is."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    data = io.BytesIO("".join(f"{text}\n" for text in texts).encode())
    data.name = "requests.jsonl"
    return data


def begin(client: openai.OpenAI, lines: list[Any], **more: Any) -> Any:
    file = client.files.create(file=file_of(lines), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", **more
    )


def wait(client: openai.OpenAI, batch_id: str, within_s: float = 60) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        time.sleep(0.03)
    raise AssertionError(f"the batch is still {batch.status}")


def lines_of(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    text = client.files.content(file_id).text
    return {entry["custom_id"]: entry for entry in map(json.loads, text.splitlines())}


def content(entry: Any) -> str:
    return str(entry["response"]["body"]["choices"][0]["message"]["content"])


def test_files_are_kept_listed_read_and_deleted(client: openai.OpenAI) -> None:
    kept = client.files.create(file=("a.jsonl", b'{"x": 1}\n'), purpose="batch")
    assert (kept.bytes, kept.filename, kept.purpose) == (9, "a.jsonl", "batch")
    assert kept.status == "processed" and kept.object == "file"
    other = client.files.create(file=("b.jsonl", b"{}\n"), purpose="batch")
    assert {file.id for file in client.files.list()} == {kept.id, other.id}
    assert len(client.files.list(limit=1).data) == 1
    assert len(list(client.files.list(limit=1))) == 2
    assert client.files.content(kept.id).read() == b'{"x": 1}\n'
    assert client.files.retrieve(kept.id) == kept
    assert client.files.delete(kept.id).deleted is True
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(kept.id)
    with pytest.raises(openai.BadRequestError) as failed:
        client.files.create(file=("a", b"x"), purpose="vision")
    assert failed.value.param == "purpose"


def test_files_of_one_key_are_not_anothers(client: openai.OpenAI, world: World) -> None:
    file = client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    with openai.OpenAI(base_url=world.base_url, api_key=world.new_key("other")) as other:
        with pytest.raises(openai.NotFoundError):
            other.files.content(file.id)
        assert list(other.files.list()) == []
    with openai.OpenAI(base_url=world.base_url, api_key=world.gateway.local_token) as owner:
        assert owner.files.retrieve(file.id).id == file.id


def test_a_file_that_is_too_large_is_refused_and_not_kept(
    make_world: Callable[..., World],
) -> None:
    world = make_world(flags={"gateway.max_file": "1KiB"})
    with (
        openai.OpenAI(base_url=world.base_url, api_key=world.new_key()) as client,
        pytest.raises(openai.APIStatusError) as failed,
    ):
        client.files.create(file=("a.jsonl", b"x" * 2000), purpose="batch")
    assert failed.value.status_code == 413
    assert not list((world.folder / "gateway" / "files").iterdir())


def test_two_hundred_lines_with_bad_ones_are_one_order(client: openai.OpenAI, world: World) -> None:
    lines: list[Any] = [line(number) for number in range(200)]
    lines[10] = "this is not JSON"
    lines[20] = {**line(20), "url": "/v1/embeddings"}
    lines[30] = line(29)  # used before
    lines[40] = line(40, tools=[{"type": "function"}])
    lines[50] = line(50, model="other")
    lines[60] = line(60, "x" * 5000)
    lines[70] = line(70, "fail-first")
    batch = begin(client, lines, metadata={"team": "blue"})
    assert batch.status in ("validating", "in_progress", "finalizing", "completed")
    batch = wait(client, batch.id)
    assert batch.status == "completed" and batch.metadata == {"team": "blue"}
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (200, 193, 7)
    assert world.offline.orders == [194]
    answers, errors = lines_of(client, batch.output_file_id), lines_of(client, batch.error_file_id)
    assert len(answers) == 193
    assert content(answers["line-7"]) == "answer 7 🚀"
    assert all(entry["error"] is None for entry in answers.values())
    assert all(entry["response"]["status_code"] == 200 for entry in answers.values())
    codes = [entry["error"]["code"] for entry in errors.values()]
    assert "context_length_exceeded" in codes and "line_invalid" in codes
    assert errors["line-40"]["response"]["body"]["error"]["param"] == "tools[0].function"
    receipts = lines_of(client, batch.model_extra["headrace"]["receipts_file_id"])
    assert receipts.keys() == answers.keys()
    assert batch.usage.output_tokens == sum(
        entry["response"]["body"]["usage"]["completion_tokens"] for entry in answers.values()
    )
    assert batch.model_extra["headrace"]["cost_units"] == world.bank.total_units


def test_a_batch_is_charged_once_to_its_key(client: openai.OpenAI, world: World) -> None:
    wait(client, begin(client, [line(number) for number in range(5)]).id)
    (key,) = [k for k in world.run(world.gateway.keys.ls()) if k.name == "tests"]
    assert key.spent_units == world.bank.total_units > 0 and key.reserved_units == 0
    (usage,) = world.run(world.gateway.keys.usage(key.key_id))
    assert (usage["requests"], usage["cost_units"]) == (5, key.spent_units)


def test_killed_half_way_it_goes_on_and_no_line_is_bought_twice(world: World) -> None:
    secret = world.new_key()
    world.stop()
    lines = [line(number) for number in range(200)]
    with (
        killable(world.folder, world.port, line_s=0.02) as other,
        openai.OpenAI(base_url=f"{other.url}/v1", api_key=secret) as client,
    ):
        batch_id = begin(client, lines).id
        world.until(lambda: len(world.bank.paid) > 60, within_s=30)
        other.kill()
    before = len(world.bank.paid)
    assert 60 < before < 200
    world.start()
    with openai.OpenAI(base_url=world.base_url, api_key=secret) as client:
        batch = wait(client, batch_id)
        assert batch.status == "completed"
        answers = lines_of(client, batch.output_file_id)
    assert {name: content(entry) for name, entry in answers.items()} == {
        f"line-{number}": f"answer {number} 🚀" for number in range(200)
    }
    assert world.offline.orders == [200 - before]
    assert len(world.bank.paid) == 200
    key = world.key(secret)
    assert key.spent_units == world.bank.total_units and key.reserved_units == 0


def test_a_clean_stop_half_way_goes_on_too(world: World) -> None:
    secret = world.new_key()
    world.offline.line_s = 0.02
    with openai.OpenAI(base_url=world.base_url, api_key=secret) as client:
        batch_id = begin(client, [line(number) for number in range(60)]).id
        world.until(lambda: len(world.bank.paid) > 10)
        world.stop()
    world.offline.line_s = 0
    world.start()
    with openai.OpenAI(base_url=world.base_url, api_key=secret) as client:
        assert wait(client, batch_id).request_counts.completed == 60
    assert len(world.bank.paid) == 60


def test_a_cancelled_batch_keeps_and_pays_what_is_done(client: openai.OpenAI, world: World) -> None:
    world.offline.stop_after = 4
    batch = begin(client, [line(number) for number in range(10)])
    world.until(lambda: len(world.bank.paid) == 4)
    with pytest.raises(openai.ConflictError, match="until it ends"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = wait(client, batch.id)
    assert batch.status == "cancelled" and batch.cancelled_at
    assert client.files.delete(batch.input_file_id).deleted
    assert (batch.request_counts.completed, batch.request_counts.failed) == (4, 6)
    assert len(lines_of(client, batch.output_file_id)) == 4
    errors = lines_of(client, batch.error_file_id)
    assert {entry["error"]["code"] for entry in errors.values()} == {"interrupted"}
    (key,) = [k for k in world.run(world.gateway.keys.ls()) if k.name == "tests"]
    assert key.spent_units == world.bank.total_units and key.reserved_units == 0
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_a_batch_that_is_not_done_in_time_expires(client: openai.OpenAI, world: World) -> None:
    world.offline.stop_after = 2
    batch = begin(client, [line(number) for number in range(5)])
    world.until(lambda: len(world.bank.paid) == 2)
    world.stop()
    world.clock.ahead_s += 24 * 3600 + 1
    world.start()
    with openai.OpenAI(base_url=world.base_url, api_key=client.api_key) as again:
        batch = wait(again, batch.id)
        assert batch.status == "expired" and batch.expired_at
        errors = lines_of(again, batch.error_file_id)
    assert batch.request_counts.completed == 2
    assert {entry["error"]["code"] for entry in errors.values()} == {"deadline_exceeded"}


def test_a_file_without_a_good_line_fails_and_says_why(client: openai.OpenAI) -> None:
    batch = wait(client, begin(client, ["nonsense", {**line(1), "method": "GET"}]).id)
    assert batch.status == "failed" and batch.failed_at
    assert [error.line for error in batch.errors.data] == [1, 2]
    assert batch.output_file_id is None


def test_a_batch_beyond_its_keys_budget_fails_before_it_costs_anything(
    world: World,
) -> None:
    secret = world.new_key("poor", budget_units=cost(30, 40))
    with openai.OpenAI(base_url=world.base_url, api_key=secret) as client:
        batch = wait(client, begin(client, [line(number) for number in range(5)]).id)
    assert batch.status == "failed"
    assert batch.errors.data[0].code == "budget_exceeded"
    assert world.bank.total_units == 0


def test_what_a_batch_is_asked_for_wrongly_is_refused(client: openai.OpenAI) -> None:
    file = client.files.create(file=file_of([line(1)]), purpose="batch")
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("endpoint", {"endpoint": "/v1/embeddings"}),
        ("completion_window", {"completion_window": "1h"}),
        ("metadata", {"metadata": {"a": 1}}),
    ]
    for param, change in wrong:
        asked: Any = {
            "input_file_id": file.id,
            "endpoint": CHAT,
            "completion_window": "24h",
            **change,
        }
        with pytest.raises(openai.BadRequestError) as failed:
            client.batches.create(**asked)
        assert failed.value.param == param
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")


def test_batches_are_listed_page_by_page(client: openai.OpenAI) -> None:
    made = [begin(client, [line(1)]).id for _ in range(5)]
    for batch_id in made:
        wait(client, batch_id)
    assert {batch.id for batch in client.batches.list(limit=2)} == set(made)


def test_several_choices_and_logprobs_in_a_line(make_world: Callable[..., World]) -> None:
    world = make_world()
    with openai.OpenAI(base_url=world.base_url, api_key=world.new_key()) as client:
        asked = line(1, "say:two", n=2, logprobs=True, top_logprobs=1)
        batch = wait(client, begin(client, [asked]).id)
        (entry,) = lines_of(client, batch.output_file_id).values()
    choices = entry["response"]["body"]["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["two", "two"]
    told = [entry["token"] for entry in choices[0]["logprobs"]["content"]]
    assert told == ["t", "w", "o"]


def test_a_batch_waits_for_machines_as_long_as_its_window_lasts(
    client: openai.OpenAI, world: World
) -> None:
    away = NoCapacity("no pipeline serves this model now", "every machine is away")
    world.offline.refusals = [away] * 4
    batch = begin(client, [line(number) for number in range(9)])
    for orders in range(1, 5):
        world.until(lambda orders=orders: len(world.offline.orders) == orders)
        world.clock.ahead_s += 31
    batch = wait(client, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 9)
    assert world.offline.orders == [9] * 5


def test_lines_that_broke_off_are_ordered_again_and_the_others_are_not(
    client: openai.OpenAI, world: World
) -> None:
    world.offline.cut = {2, 5, 6}
    batch = begin(client, [line(number) for number in range(9)])
    world.until(lambda: world.offline.orders == [9])
    world.until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 6)
    world.clock.ahead_s += 31
    batch = wait(client, batch.id)
    assert batch.request_counts.completed == 9
    assert world.offline.orders == [9, 3] and len(world.bank.paid) == 9


def test_a_batch_that_waits_for_machines_can_be_cancelled(
    client: openai.OpenAI, world: World
) -> None:
    world.offline.refusals = [NoCapacity("no pipeline serves this model now", "all away")] * 99
    batch = begin(client, [line(1)])
    world.until(lambda: world.offline.orders)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    assert wait(client, batch.id).status == "cancelled"
    assert not world.bank.paid
