"""Has each page its JSON twin, its age and its live part, and does a change need a session?"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from eth_utils.crypto import keccak

from client.dashboard.app import PAGES
from client.dashboard.guard import COOKIE
from client.dashboard.sources.chain_log import LoggedEvent
from client.dashboard.sources.sources import FACTS_FRESH_S, PageSources
from client.records.keeper import Keeper, keepers_of
from core.dispute.game.game_log import Opened
from core.dispute.trace.program import Program
from core.engine.weights.manifest import MANIFEST_FILE
from core.engine.weights.store import pulled_path
from core.protocol import ids
from core.protocol.errors import ChainUnreachable, ContractRefused
from core.protocol.units import parse_token
from tests.client.dashboard.world import (
    FOREIGN_JOB,
    GAME_CASE,
    JOB,
    JURY_CASE,
    MANIFEST,
    MINERS,
    MODEL_ID,
    NAMED,
    OLD_JOB,
    OWNER,
    PAYER,
    PROGRAM,
    PagesWorld,
    filled_world,
    tx_of,
)
from tests.client.gateway.world import World

JOB_ID = ids.full(ids.Kind.JOB, JOB)
RECEIPT = f"rcpt_{1:032x}"
PATHS = (
    "/",
    "/models",
    f"/models/{MODEL_ID}",
    "/chat",
    "/jobs",
    f"/jobs/{JOB_ID}",
    f"/jobs/{OLD_JOB}",
    f"/receipts/{RECEIPT}",
    "/keys",
    "/wallet",
    "/network",
    f"/miners/{MINERS[2]}",
    f"/earnings?owner={OWNER}",
    "/earnings",
    "/planner",
    "/disputes",
    f"/disputes/{JURY_CASE}",
    f"/disputes/{GAME_CASE}",
    "/?span=24h",
    "/history",
    "/history?days=7",
    "/explorer",
    "/explorer?name=Slashed",
    f"/addresses/{PAYER}",
    f"/transactions/{tx_of(12)}",
    "/blocks/12",
    f"/things/{FOREIGN_JOB}",
    "/connect",
)
NOWHERE = (
    "/jobs/job_ZZZZ",
    "/receipts/nope",
    "/miners/mnr_ZZZZ",
    "/disputes/disp_ZZZZ",
    "/models/none",
    "/blocks/x",
    "/transactions/0x12",
    "/addresses/0x12",
    "/things/zz",
    "/earnings?owner=zz",
    "/search?q=%3Cscript%3E",
    "/jobs/batch_none",
)
CHANGES: dict[str, dict[str, str]] = {"/keys": {"name": "x"}, "/planner": {"methods": "even"}} | {
    path: {}
    for path in (
        f"/receipts/{RECEIPT}/check",
        f"/jobs/{JOB_ID}/check",
        "/keys/limits",
        "/keys/key_local/revoke",
        "/jobs/batch_1/cancel",
        "/api/v1/chat/completions",
        "/api/v1/files",
        "/api/v1/batches",
    )
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    with filled_world(tmp_path_factory.mktemp("pages"), within_s=20) as world:
        yield world


@pytest.fixture
def stranger(world: PagesWorld) -> Iterator[httpx2.Client]:
    with world.client() as http:
        yield http


@pytest.fixture
def owner(world: PagesWorld) -> Iterator[httpx2.Client]:
    with world.client(session=True) as http:
        found = re.search(r'name="csrf-token" content="([^"]+)"', http.get("/").text)
        assert found
        http.headers["x-csrf-token"] = found[1]
        yield http


class Ids(HTMLParser):
    """Ids of elements, and everything that a strict policy would stop."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.inline: list[str] = []
        self.ages = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.seen += [given["id"] or ""] if "id" in given else []
        self.ages += "age" in (given.get("class") or "").split()
        self.inline += [
            f"{tag} {name}" for name in given if name == "style" or name.startswith("on")
        ]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_whole_and_its_twin_says_the_same(stranger: httpx2.Client, path: str) -> None:
    page = stranger.get(path)
    assert page.status_code == 200, page.text[-500:]
    found = Ids()
    found.feed(page.text)
    assert found.inline == [] and len(found.seen) == len(set(found.seen))
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "unsafe" not in page.headers["content-security-policy"]
    if path.partition("?")[0] not in ("/chat", "/planner", "/connect", "/earnings"):
        assert found.ages, "no number on it says how old it is"
    twin = re.search(r'class="twin" href="([^"]+)"', page.text)
    assert twin
    by_path = stranger.get(twin[1].replace("&amp;", "&"))
    by_header = stranger.get(path, headers={"accept": "application/json"})
    assert by_path.status_code == 200 and by_path.headers["content-type"] == "application/json"
    assert by_path.json().keys() == by_header.json().keys()


def test_every_page_of_the_list_is_tried() -> None:
    tried = {re.sub(r"[?].*", "", path) for path in PATHS}
    for page in PAGES:
        pattern = re.compile(re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(page.path)))
        assert any(pattern.fullmatch(path) for path in tried), page.path


@pytest.mark.parametrize("path", NOWHERE)
def test_what_is_not_there_is_said_in_words(stranger: httpx2.Client, path: str) -> None:
    page = stranger.get(path)
    assert page.status_code in (400, 404)
    assert (
        "What now" in page.text
        and "<script>alert" not in page.text
        and "<script>'" not in page.text
    )
    told = stranger.get(path, headers={"accept": "application/json"})
    assert told.json()["error"]["code"].startswith("E-")


def test_the_twin_of_the_overview_adds_up(stranger: httpx2.Client) -> None:
    found = stranger.get("/api/overview").json()
    assert (found["network"]["machines"], found["network"]["serving"]) == (4, 3)
    assert found["wallet"]["deposited_units"] == 15_000_000
    assert found["wallet"]["locked_units"] == 3_000_000
    assert found["receipts"][0]["cost_units"] == 1_005
    assert found["activity"]["tokens"] == sum(40 + n for n in range(1, 6))
    assert found["warnings"] == [], "a network that serves everything opens without a warning"
    assert [stage["layers"] for stage in found["way"]["stages"]] == ["0–9", "10–19", "20–29"]
    assert found["span"] == "15m"


def test_a_job_has_its_name_and_says_whether_a_program_here_runs_it(
    world: PagesWorld, stranger: httpx2.Client
) -> None:
    store = world.gateway.store
    assert store is not None
    keeper = Keeper(keepers_of(world.settings))
    store.add_submission("sub", "nightly", keeper.name)
    try:
        (order,) = stranger.get("/api/jobs").json()["jobs"]
        assert (order["name"], order["kind"], order["is_running"]) == ("nightly", "file", True)
        (running,) = stranger.get("/api/overview").json()["submitted"]
        assert running == order
        for page in ("/", "/jobs", f"/jobs/{JOB_ID}"):
            html = stranger.get(page).text
            assert "nightly" in html and "run" in html
    finally:
        keeper.close()
    (order,) = stranger.get("/api/jobs").json()["jobs"]
    assert (order["name"], order["is_running"]) == ("nightly", False)
    assert stranger.get("/api/overview").json()["submitted"] == []


def facts_of(world: PagesWorld, http: httpx2.Client, kind: str) -> dict[str, Any]:
    """A model's facts once they are of this kind; nothing is waited for longer than a page does."""
    found: dict[str, Any] = {}

    def is_read() -> bool:
        world.clock.ahead_s += FACTS_FRESH_S
        found.update(http.get(f"/api/models/{MODEL_ID}").json()["model"])
        return bool(found["facts"]) and found["facts"]["judged_by"] == kind

    world.until(is_read, 20)
    return found


def test_a_model_is_shown_with_its_licence_its_judge_and_who_serves_it(
    world: PagesWorld, stranger: httpx2.Client
) -> None:
    model = facts_of(world, stranger, "game")
    facts = model["facts"]
    assert (facts["numerics"], facts["span_layers"]) == ("float32", 6)
    tolerances = Program.from_bytes(PROGRAM).tolerances
    assert [(one["layers"], one["rows"]) for one in facts["tolerances"]] == [
        (one.max_depth, one.min_rows) for one in tolerances
    ]
    assert (facts["names"], facts["places"]) == ([f"{OWNER}/smollm2"], NAMED["PLACES"])
    assert (facts["licence"], facts["size_bytes"]) == (None, None)
    pages = "/models", f"/models/{MODEL_ID}"
    for path in pages:
        page = stranger.get(path).text
        assert "<code>client models show smollm2-135m</code> fetches it" in page
        assert "its operator program, 6 layers of a stage at a time" in page
        assert "hf://maker/smollm2@main" in page and f"{OWNER}/smollm2" in page
    machines = stranger.get(f"/api/models/{MODEL_ID}").json()["machines"]
    assert {m["operator"] for m in machines} == set(MINERS.values())
    assert all(m["price_in"] and m["price_out"] for m in machines)

    # Its manifest comes onto this machine.
    kept = pulled_path(MODEL_ID, world.settings.folders.cache)
    kept.mkdir(parents=True)
    (kept / MANIFEST_FILE).write_bytes(MANIFEST.to_json())
    world.until(lambda: facts_of(world, stranger, "game")["facts"]["licence"] is not None, 20)
    for path in pages:
        page = stranger.get(path).text
        assert "<dd>apache-2.0</dd>" in page and "5.0 MiB in 1 file" in page
        assert "models show" not in page


@pytest.mark.parametrize(
    ("program", "kind", "said"),
    [
        (replace(Program.from_bytes(PROGRAM), tolerances=()).to_bytes(), "shadow", "in shadow"),
        (b"", "jury", "a jury alone"),
        (b"another version", "unreadable", "update it"),
    ],
)
def test_what_judges_a_model_is_said_of_each_kind(
    world: PagesWorld, stranger: httpx2.Client, program: bytes, kind: str, said: str
) -> None:
    before = dict(world.chain.answers), world.chain.models[MODEL_ID]
    profile = "0x" + keccak(program).hex()
    world.chain.answers["ProgramStore.load"] = (
        "0x" + program.hex() if program else ContractRefused("no program", error="None", args={})
    )
    changed = msgspec.structs.replace(before[1], numerics_profile=profile)
    world.chain.models[MODEL_ID] = changed
    try:
        assert facts_of(world, stranger, kind)["facts"]["tolerances"] == []
        for path in ("/models", f"/models/{MODEL_ID}"):
            assert said in stranger.get(path).text
    finally:
        world.chain.answers, world.chain.models[MODEL_ID] = before


def test_texts_are_for_the_owner(
    stranger: httpx2.Client, owner: httpx2.Client, world: PagesWorld
) -> None:
    said = "only for me"
    body = {
        "model": "toy",
        "messages": [{"role": "user", "content": f"say:{said}"}],
        "max_tokens": 40,
    }
    answer = owner.post("/api/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == said
    receipt = answer.headers["x-receipt-id"]
    page = stranger.get(f"/receipts/{receipt}")
    assert page.status_code == 200 and said not in page.text
    assert stranger.post("/api/v1/chat/completions", json=body).status_code == 403
    jobs = stranger.get(f"/api/jobs/{JOB_ID}").json()
    assert jobs["may_see_texts"] is False and {a["text"] for a in jobs["answers"]} == {None}


def test_the_live_part_is_the_same_html_again_and_again(stranger: httpx2.Client) -> None:
    with stranger.stream("GET", "/live/network") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        seen, events = "", 0
        for chunk in stream.iter_text():
            seen += chunk
            events = seen.count("\n\n")
            if events >= 1:
                break
    lines = seen.partition("\n\n")[0].splitlines()
    assert all(line.startswith("data: ") for line in lines)
    assert "mnr_" in seen and "<svg" in seen
    assert stranger.get("/live/chat").status_code == 204


def test_a_link_opens_a_session_once(world: PagesWorld, stranger: httpx2.Client) -> None:
    assert stranger.get("/login?token=wrong").status_code == 403
    assert stranger.get("/login").status_code == 403
    link = world.login_url
    token = link.partition("token=")[2]
    found = stranger.get(link)
    assert found.status_code == 303 and found.headers["location"] == "/"
    cookie = found.headers["set-cookie"]
    assert COOKIE in cookie and "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert token not in cookie and "secure" not in cookie.lower()
    page = stranger.get("/")
    assert "session open" in page.text and token not in page.text
    assert stranger.get(link).status_code == 303  # loaded again in the same browser
    with world.client() as another:
        again = another.get(link)
        assert again.status_code == 403 and "it was used" in again.text
        assert "set-cookie" not in again.headers


@pytest.mark.parametrize(("path", "fields"), CHANGES.items())
def test_no_change_without_session_token_and_our_own_page(
    world: PagesWorld,
    stranger: httpx2.Client,
    owner: httpx2.Client,
    path: str,
    fields: dict[str, str],
) -> None:
    before = len(world.run(world.gateway.keys.ls()))
    assert stranger.post(path, data=fields).status_code == 403
    token = owner.headers["x-csrf-token"]
    for headers in (
        {"x-csrf-token": "wrong"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
    ):
        assert (
            owner.post(path, data=fields, headers={"x-csrf-token": token} | headers).status_code
            == 403
        )
    assert len(world.run(world.gateway.keys.ls())) == before


SEEN = ("/", "/api/wallet", "/live/overview", "/wallet.csv", "/api/v1/models", "/keys")


def test_another_name_or_a_proxy_sees_nothing(world: PagesWorld) -> None:
    with world.client() as http:
        for headers in ({"host": "rebound.example"}, {"x-forwarded-for": "127.0.0.1"}):
            for path in SEEN:
                answer = http.get(path, headers=headers)
                assert answer.status_code == 403, path
                assert PAYER[2:] not in answer.text


def test_without_a_session_nobody_reads_unless_the_owner_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, flags={"gateway.dashboard": "true"}).start()
    try:
        with httpx2.Client(base_url=world.url, timeout=30) as http:
            for path in SEEN:
                answer = http.get(path)
                assert answer.status_code == 403 and "client pages" in answer.text, path
                assert world.gateway.payer not in answer.text
            assert http.get("/metrics").status_code == 404
            token = world.run(world.gateway.logins.new())
            assert http.get("/login", params={"token": token}).status_code == 303
            assert http.get("/api/keys").status_code == 200
    finally:
        world.stop()


def test_pages_pass_on_only_what_they_need(owner: httpx2.Client) -> None:
    assert owner.get("/api/v1/models").json()["data"][0]["id"] == "toy"
    for method, path in (
        ("GET", "/api/v1/files"),
        ("POST", "/api/v1/embeddings"),
        ("GET", "/api/v1/jobs/x"),
    ):
        assert owner.request(method, path).status_code in (404, 405), path
    assert "authorization" not in {
        key.lower() for key in owner.get("/api/v1/models").request.headers
    }


def test_a_page_can_ask_whether_a_model_talks(
    world: PagesWorld, stranger: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stranger.get("/chat/models/toy").json() == {"model": "toy", "can_chat": True}
    monkeypatch.setattr(type(world.tokenizer), "can_chat", False)
    assert stranger.get("/chat/models/toy").json()["can_chat"] is False
    missing = stranger.get("/chat/models/huge")
    assert missing.status_code == 404 and "no model 'huge'" in missing.json()["error"]["what"]


def test_the_number_that_a_game_ended_at_is_read_once_and_again_after_an_error(
    world: PagesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    number, down = object(), [ChainUnreachable("no answer", "it is down")]

    async def on_trial(chain: Any, opened: Opened) -> object:
        reads.append(opened.dispute)
        if down:
            raise down.pop()
        return number

    monkeypatch.setattr("client.disputes.game_record.on_trial", on_trial)
    args = next(e.args for e in world.chain.log if e.name == "GameOpened")
    event = LoggedEvent(1, 5, 0, "0x", "ToleranceGame", "GameOpened", args, None)

    async def ask() -> list[Any]:
        sources = PageSources(world.gateway)
        sources.chain = world.chain  # type: ignore[assignment]
        return [await sources.trial(event) for _ in range(3)]

    assert world.run(ask()) == [None, number, number]
    assert reads == [GAME_CASE, GAME_CASE]


def test_a_machine_whose_owner_was_slashed_says_so(stranger: httpx2.Client) -> None:
    """Accused and slashed is the owner; the chain's events of it do not name the operator."""
    page = stranger.get(f"/api/miners/{ids.full(ids.Kind.MINER, MINERS[2])}").json()
    assert page["disputes"] == 2
    names = [event["name"] for event in page["events"]]
    assert {"Slashed", "GameOpened", "DisputeOpened", "JobMatched", "MinerRegistered"} <= set(names)
    numbers = [event["id"] for event in page["events"]]
    assert numbers == sorted(set(numbers), reverse=True), "each once, newest first"


def test_a_machine_is_shown_as_its_owner_announced_it_on_the_chain(
    stranger: httpx2.Client,
) -> None:
    page = stranger.get(f"/miners/{ids.full(ids.Kind.MINER, MINERS[2])}")
    assert "<dt>On chain</dt><dd>cuda, 24.0 GiB</dd>" in page.text


def test_lines_of_a_batch_that_failed_are_shown_to_the_owner_with_the_reason(
    world: PagesWorld, owner: httpx2.Client, stranger: httpx2.Client
) -> None:
    asked = {"model": "toy", "max_tokens": 8}
    said = {"messages": [{"role": "user", "content": "say:yes"}]}
    url = "/v1/chat/completions"
    good = {"custom_id": "good", "method": "POST", "url": url, "body": asked | said}
    bad = {**good, "custom_id": "<b>bad</b>", "body": asked}
    file = "".join(json.dumps(line) + "\n" for line in (good, bad)).encode()
    upload = {"data": {"purpose": "batch"}, "files": {"file": ("lines.jsonl", file)}}
    sent = owner.post("/api/v1/files", **upload).json()  # type: ignore[arg-type]
    body = {"input_file_id": sent["id"], "endpoint": url, "completion_window": "24h"}
    batch = owner.post("/api/v1/batches", json=body).json()["id"]
    path = f"/jobs/{batch}"
    world.until(lambda: owner.get(f"/api{path}").json()["batch"]["status"] == "completed")
    (failed,) = owner.get(f"/api{path}").json()["failures"]
    assert failed["custom_id"] == "<b>bad</b>" and "messages" in failed["why"]
    shown = owner.get(path).text
    assert (
        "Failed lines" in shown and "&lt;b&gt;bad&lt;/b&gt;" in shown and "<b>bad</b>" not in shown
    )
    assert stranger.get(f"/api{path}").json()["failures"] == []


def test_a_key_is_shown_once_and_never_again(world: PagesWorld, owner: httpx2.Client) -> None:
    made = owner.post(
        "/keys", data={"name": "<b>me</b>", "budget": "2usd", "rate": "30/m", "models": "toy"}
    )
    assert made.status_code == 201 and "<b>me</b>" not in made.text
    secret = re.search(r'id="secret">([^<]+)<', made.text)
    assert secret
    key = world.key(secret[1])
    assert (key.limits.budget_units, key.limits.requests_per_minute) == (parse_token("2usd"), 30)
    assert secret[1] not in owner.get("/keys").text and secret[1] not in owner.get("/api/keys").text
    for wrong in (
        {"name": ""},
        {"name": "x", "budget": "5"},
        {"name": "x", "rate": "fast"},
        {"name": "x", "expires": "soon"},
    ):
        answer = owner.post("/keys", data=wrong)
        assert 'role="alert"' in answer.text and "secret" not in answer.text


def test_a_key_is_given_other_limits_and_its_use_is_a_table(
    world: PagesWorld, owner: httpx2.Client
) -> None:
    made = owner.post("/keys", data={"name": "=team", "budget": "2usd", "tags": "a, b"})
    secret = re.search(r'id="secret">([^<]+)<', made.text)
    assert secret
    key = world.key(secret[1])
    assert key.limits.tags == ("a", "b")
    form = {"key": key.key_id, "budget": "3usd/day", "rate": "9/m", "tags": "none"}
    changed = owner.post("/keys/limits", data=form)
    assert changed.status_code == 200 and "has its new limits" in changed.text
    limits = world.key(secret[1]).limits
    assert (limits.budget_units, limits.budget_period) == (parse_token("3usd"), "day")
    assert (limits.requests_per_minute, limits.tags) == (9, ())
    for wrong in ({"key": key.key_id}, {"key": "key_none", "rate": "1/m"}, {"rate": "1/m"}):
        assert 'role="alert"' in owner.post("/keys/limits", data=wrong).text
    table = owner.get("/keys.csv").text.splitlines()
    assert table[0].startswith("day,key_id,name,tags,model,requests")


def test_the_planner_compares_methods_over_the_live_fleet_and_a_made_up_one(
    owner: httpx2.Client,
) -> None:
    form = {"model": MODEL_ID, "methods": ["even", "greedy"], "limit_s": "8"}
    live = owner.post("/planner", data=form, timeout=60)
    assert live.status_code == 200 and 'class="best"' in live.text
    assert live.text.count('class="picture pipelines"') == 2
    shown = owner.get("/api/planner").json()["example"]
    own = owner.post(
        "/planner", data={"document": shown, "methods": "even", "limit_s": "8"}, timeout=60
    )
    assert "three machines" in own.text and "desk" in own.text
    for wrong in (
        {"document": "{", "methods": "even"},
        {"document": "[]", "methods": "even"},
        {"document": "{}"},
        {"methods": "even", "limit_s": "x", "document": "{}"},
    ):
        assert 'role="alert"' in owner.post("/planner", data=wrong).text


def test_the_calculator_reproduces_the_paper_and_refuses_nonsense(stranger: httpx2.Client) -> None:
    asked = {
        "rent": "0.35usd",
        "energy": "0usd",
        "price_out": "0.90usd/Mtok",
        "price_in": "0usd/Mtok",
    }
    found = stranger.get(
        "/earnings/break-even", params=asked, headers={"accept": "application/json"}
    )
    assert round(found.json()["tokens_per_s"]) == 108
    for wrong in (
        {"rent": "0.35"},
        {"watts": "-1"},
        {"rate": "nan"},
        {"busy": "101"},
        {"price_out": "1usd"},
    ):
        assert stranger.get("/earnings/break-even", params=asked | wrong).status_code == 400


def test_earnings_of_an_owner_are_what_the_chain_credited(stranger: httpx2.Client) -> None:
    found = stranger.get("/api/earnings", params={"owner": OWNER}).json()
    assert (found["paid_units"], found["slashed_units"]) == (400_000, 100_000_000)
    assert {p["job_id"]: p["paid_units"] for p in found["payouts"]} == {OLD_JOB: 400_000, JOB: 0}
    assert found["counts"]["settled"] == 1 and found["counts"]["matched"] == 1


def test_the_search_finds_every_kind_of_thing(stranger: httpx2.Client) -> None:
    for room, typed in (
        ("jobs", "job_248"),
        ("blocks", "12"),
        ("addresses", PAYER),
        ("jobs", FOREIGN_JOB),
        ("transactions", tx_of(12)),
        ("disputes", JURY_CASE),
        ("models", "toy"),
    ):
        answer = stranger.get("/search", params={"q": typed})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/{room}/{typed}")


def test_the_export_is_every_movement(stranger: httpx2.Client) -> None:
    rows = stranger.get("/wallet.csv").text.splitlines()
    changes = [int(row.split(",")[4]) for row in rows[1:]]
    assert (
        rows[0].startswith("time_s,block,event") and sum(changes) == (20 - 2 - 3) * 10**6 + 800_000
    )


def test_static_files_are_kept_by_browsers_and_never_stale(stranger: httpx2.Client) -> None:
    page = stranger.get("/").text
    for address in set(re.findall(r'"(/static/[^"]+)"', page)):
        found = stranger.get(address)
        assert found.status_code == 200 and "immutable" in found.headers["cache-control"]
        again = stranger.get(address, headers={"if-none-match": found.headers["etag"]})
        assert again.status_code == 304
    assert stranger.get("/static/../app.py").status_code == 404
    licence = stranger.get("/static/htmx-LICENSE.txt")
    assert "Zero-Clause BSD" in licence.text


def test_pages_are_no_part_of_the_api_description(stranger: httpx2.Client) -> None:
    described = stranger.get("/openapi.json").json()["paths"]
    assert not [path for path in described if not path.startswith(("/v1/", "/health", "/ready"))]


def test_a_check_that_cannot_be_made_says_why(world: PagesWorld, owner: httpx2.Client) -> None:
    first = owner.post(f"/receipts/{RECEIPT}/check")
    assert first.status_code == 200
    found = world.until(
        lambda: (
            (text := owner.get(f"/receipts/{RECEIPT}/check").text)
            and "checking" not in text
            and text
        ),
        20,
    )
    assert "not checked to the end" in found
    row = world.run(world.gateway.ledger.request(RECEIPT))
    assert row is not None and row.is_checked is None
    assert json.dumps(row.model_dump())


def test_a_gateway_that_stops_ends_open_pages_instead_of_cutting_them(tmp_path: Path) -> None:
    world = World(tmp_path, flags={"gateway.dashboard": "true"}).start()
    stopper = threading.Thread(target=world.stop)
    with (
        httpx2.Client(base_url=world.url, timeout=30) as http,
        http.stream("GET", "/live/overview") as stream,
    ):
        parts = stream.iter_text()
        next(parts)
        stopper.start()
        for _ in parts:  # a connection that is cut raises here
            pass
    stopper.join(30)
    assert not stopper.is_alive()
