"""A new user's walk: a key, a chat with its receipt, a file of requests from upload to download."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import openai
import pytest

from client.gateway.money.ledger import DONE
from tests.browser.conftest import Drive
from tests.client.dashboard.world import PagesWorld
from tests.client.gateway.toy import cost

QUIET: dict[str, list[str]] = {"console": [], "foreign": [], "failed": []}


def test_a_key_made_on_the_page_is_good_until_it_is_revoked_there(
    pages: PagesWorld, drive: Drive
) -> None:
    found = drive("flows", flow="key", login=pages.login_url, base=pages.url)
    assert found["told"] == QUIET
    assert "5" in found["refused"] and "unit" in found["refused"]
    key = pages.key(found["secret"])
    limits = key.limits.budget_units, key.limits.budget_period
    assert (key.name, *limits) == ("from the browser", 1_000_000, "day")
    assert key.revoked_at is not None
    with openai.OpenAI(base_url=pages.base_url, api_key=found["secret"], max_retries=0) as client:
        try:
            client.models.list()
        except openai.AuthenticationError:
            return
    raise AssertionError("a revoked key still opens the gateway")


def test_a_chat_shows_text_cost_route_and_a_receipt_that_says_the_same(
    pages: PagesWorld, drive: Drive
) -> None:
    said = "Wasser treibt das Rad 🚀 and the mill."
    found = drive("flows", flow="chat", login=pages.login_url, base=pages.url, prompt=f"say:{said}")
    assert found["told"] == QUIET
    assert found["text"] == said
    receipt = found["url"].rpartition("/")[2]
    row = pages.run(pages.gateway.ledger.request(receipt))
    assert row is not None and row.state == DONE
    assert row.cost_units == cost(row.tokens_in, row.tokens_out)
    shown = pages.settings.money(pages.settings.show_token(row.cost_units))
    assert shown and found["cost"] == shown and shown in found["shown"]
    assert f"{row.tokens_out} tokens" in found["shown"]
    assert found["shown"].count("mnr_") == 3
    assert "not checked to the end" in found["verdict"]  # this chain cannot be asked


def test_a_base_model_is_said_to_be_one_and_goes_on_from_the_text_of_all_turns(
    pages: PagesWorld, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(pages.tokenizer), "can_chat", False)
    prompts = ["once upon", "a time"]
    found = drive("flows", flow="base", login=pages.login_url, base=pages.url, prompt=prompts)
    assert found["told"] == QUIET
    assert "toy is a base model" in found["warned"]
    assert found["labels"] == len(prompts)
    asked = [pages.tokenizer.decode(ask.prompt.ids) for ask in pages.answerer.asked[-2:]]
    assert asked == ["once upon", f"once upon\n{found['texts'][0]}\na time"]


def test_a_chat_that_is_stopped_stops_the_miners(pages: PagesWorld, drive: Drive) -> None:
    pages.answerer.token_s = 0.05
    try:
        found = drive("flows", flow="stop", login=pages.login_url, base=pages.url, prompt="forever")
    finally:
        pages.answerer.token_s = 0.0
    assert found["text"]
    pages.until(lambda: pages.answerer.running == 0, 30)


def test_an_open_page_follows_the_network_and_leaves_the_person_where_they_are(
    pages: PagesWorld, drive: Drive, tmp_path: Path
) -> None:
    lost = pages.told["/v1/miners"]["miners"][0]
    ready, over = tmp_path / "ready", threading.Event()

    def lose() -> None:
        while not ready.exists() and not over.wait(0.05):
            continue
        lost.update(alive=False)

    losing = threading.Thread(target=lose)
    losing.start()
    try:
        found = drive("flows", flow="live", login=pages.login_url, base=pages.url, ready=str(ready))
    finally:
        over.set()
        losing.join()
        lost["alive"] = True
    assert found["told"] == QUIET
    assert found["ticks"] >= 2 and found["open"] is True
    assert found["focused"] and found["kept"] == found["focused"]


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions"])
def test_a_file_of_requests_goes_from_upload_to_download(
    pages: PagesWorld, drive: Drive, tmp_path: Path, url: str
) -> None:
    is_chat = url == "/v1/chat/completions"

    def asked(said: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": said}]} if is_chat else {"prompt": said}

    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": url,
            "body": {"model": "toy", "max_tokens": 32, **asked(f"say:number {number}")},
        }
        for number in range(12)
    ]
    file = tmp_path / "requests.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = drive("flows", flow="job", login=pages.login_url, base=pages.url, file=str(file))
    assert found["told"] == QUIET
    answers = {answer["custom_id"]: answer for answer in map(json.loads, found["lines"])}
    assert len(answers) == len(lines)
    for number in range(12):
        (choice,) = answers[f"line-{number}"]["response"]["body"]["choices"]
        said = choice["message"]["content"] if is_chat else choice["text"]
        assert said == f"number {number}"
