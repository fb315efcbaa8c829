"""Do views say what their values say: what lasts how long, what is fast, whose clock runs?"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.dashboard import present
from client.dashboard.pictures.bars import bar, progress
from client.dashboard.pictures.days import columns
from client.dashboard.pictures.lines import line_chart, nice_ceiling
from client.dashboard.pictures.path import path
from client.dashboard.pictures.pipelines import Box, Row, pipelines
from client.dashboard.pictures.ring import MOST_CARDS, MOST_SMALL, RingStage, ring
from client.dashboard.sources.cached import Dated
from client.dashboard.sources.chain_log import LoggedEvent
from client.dashboard.sources.sources import RULES
from client.dashboard.views import disputes, earnings, overview, planner
from client.dashboard.views.activity import SPAN, SPANS_MS, activity
from client.dashboard.views.common import RequestLine, link_ms, pipeline_rows
from client.dashboard.views.connect import connect
from client.dashboard.views.explorer import event_line
from client.dashboard.views.meaning import WORDS
from client.dashboard.views.wallet import MOVES, movement
from client.disputes.game_record import OnTrial
from client.wallet import Balances
from core.chain.artifacts import artifact
from core.chain.chain import CONTRACTS
from core.dispute.trace.layout import Place
from core.money.break_even import Earning, HourlyCost
from core.protocol import ids
from core.protocol.units import NANO, format_token

NOW_MS = 1_700_000_000_000
SPAN_MS = SPANS_MS[SPAN]
A, B, C = ("0x" + f"{n:02x}" * 20 for n in (0xA1, 0xB2, 0xC3))


def line(at_ms: int, tokens: int, first_ms: int, took_ms: int) -> RequestLine:
    return RequestLine(
        "r", "rcpt", "m", "done", 1, tokens, 1, 0, (), (), first_ms, took_ms, None, "", at_ms
    )


@given(
    st.lists(
        st.tuples(
            st.integers(0, SPAN_MS - 1),
            st.integers(0, 4000),
            st.integers(0, 5000),
            st.integers(0, 60_000),
        ),
        max_size=20,
    )
)
def test_the_area_under_the_rate_is_the_tokens_that_came_in_its_time(
    requests: list[tuple[int, int, int, int]],
) -> None:
    lines = [
        line(NOW_MS - ago, tokens, first, first + more) for ago, tokens, first, more in requests
    ]
    found = activity(lines, NOW_MS)
    area = sum((rate or 0.0) * SPAN_MS / 60 / 1000 for _, rate in found.tokens_per_s)
    assert found.tokens == sum(tokens for _, tokens, _, _ in requests)
    assert area <= found.tokens + 1e-6
    inside = sum(tokens for ago, tokens, _, more in requests if ago + more < SPAN_MS)
    assert area >= inside - 1e-6


def test_the_money_lasts_as_long_as_the_mean_of_the_days_that_cost_something() -> None:
    usage = [
        {"day": "a", "cost_units": 10},
        {"day": "a", "cost_units": 5},
        {"day": "b", "cost_units": 0},
        {"day": "c", "cost_units": 2},
    ]
    per_day = overview.spent_per_day(usage)
    assert per_day == 9  # 17 over two days, rounded up
    held = Dated(Balances(1, 30, 60, 0, 0, 0), NOW_MS)
    card = overview.wallet_card(held, A, 5, per_day)
    assert card.lasts_s == 10 * 86_400
    assert overview.wallet_card(held, A, 5, 0).lasts_s is None
    assert overview.wallet_card(Dated(None, 0, "no answer"), A, 0, 9).problem == "no answer"


def miner(operator: str, **changes: object) -> dict[str, object]:
    return {
        "operator": operator,
        "alive": True,
        "state": "SERVING",
        "modelId": "m",
        "layers": [0, 4],
    } | changes


def test_a_chain_shows_each_link_as_either_side_measured_it() -> None:
    miners = [
        miner(A, rhoMs={B.upper().replace("0X", "0x"): 3.5}),
        miner(B),
        miner(C, state="JOIN", layers=None, assigned=[0, 4]),
    ]
    stages = [
        {"operator": A, "layerFrom": 0, "layerTo": 4},
        {"operator": B, "layerFrom": 4, "layerTo": 8},
    ]
    routes = [{"modelId": "m", "stages": stages, "latencyMs": 9.0, "usedSlots": 1, "maxSlots": 4}]
    chain, waiting = pipeline_rows("m", routes, miners)
    assert [(box.start, box.end, box.link_ms) for box in chain.boxes] == [(0, 4, 3.5), (4, 8, None)]
    assert (waiting.is_chain, waiting.boxes[0].kind) == (False, "loading")
    known = {A: miners[0], B: miners[1]}
    assert link_ms(known, B, A) == 3.5 and link_ms(known, B, C) is None


def event(name: str, contract: str = "Escrow", **args: object) -> LoggedEvent:
    return LoggedEvent(1, 10, 0, "0x" + "01" * 32, contract, name, args, 1_700_000_000)


def test_movements_of_the_prepaid_balance_add_up() -> None:
    job, other = "0x" + "11" * 32, "0x" + "12" * 32
    paid = {"payNano": [30 * NANO - 2, 9 * NANO], "matcherNano": NANO, "protocolNano": 1}
    unpaid = {"payNano": [], "matcherNano": 2 * NANO, "protocolNano": 0}
    past = [
        event("Deposited", account=A, payer=A, amount=100),
        event("JobOpened", job=job, requester=A, maxNano=60 * NANO - 1),
        event("Paid", job=job, requester=A, refundNano=20 * NANO, **paid),
        event("JobOpened", job=other, requester=A, maxNano=40 * NANO),
        event("Paid", job=other, requester=A, refundNano=0, **paid),
        event("JobOpened", job="0x" + "13" * 32, requester=A, maxNano=7 * NANO),
        event("Paid", job="0x" + "13" * 32, requester=A, refundNano=5 * NANO, **unpaid),
        event("WithdrawRequested", account=A, amount=10, readyAt=1),
        event("Withdrawn", account=A, amount=10),
        event("Collected", to=A, account=A, payee=1, amount=3),
    ]
    moved = [movement(e) for e in past]
    assert sum(one.change_units for one in moved) == 100 - 40 - 40 - 2 - 10
    ended, used_up = moved[2], moved[4]
    assert (ended.text, ended.amount_units, ended.paid_units) == ("returned from a job", 20, 39)
    assert (used_up.text, used_up.amount_units, used_up.paid_units) == ("paid for a job", 0, 39)
    assert [one.job_id for one in moved[1:3]] == [job, job]
    assert set(MOVES) >= {e.name for e in past}


def test_a_payments_parts_are_read_in_whole_units() -> None:
    paid = event("Paid", operators=[A, B], payNano=[3 * NANO + 1, 2 * NANO], refundNano=NANO)
    arguments = [(one.name, one.value, one.kind) for one in event_line(paid).arguments]
    assert arguments == [
        ("operators[0]", A, "address"),
        ("operators[1]", B, "address"),
        ("pay[0]", "3", "units"),
        ("pay[1]", "2", "units"),
        ("refund", "1", "units"),
    ]


def test_the_papers_table_and_the_calculator_agree() -> None:
    rows = earnings.paper_table(10**6)
    assert [
        abs(row.tokens_per_s - want) <= 1
        for row, want in zip(rows, (108, 1139, 1704, 4283), strict=True)
    ] == [True] * 4
    found = earnings.break_even(HourlyCost(350_000), Earning(0, 900_000, Fraction(0)), 216.05, 0.5)
    assert found.tokens_per_s == pytest.approx(108.02, abs=0.01)
    assert abs(found.profit_units_per_day or 0) < 1500


def test_a_dispute_says_how_far_it_is_and_whose_clock_runs() -> None:
    states = [step.state for step in disputes.jury_path("revealing")]
    assert states == ["done", "done", "now", "later", "later"]
    assert {step.state for step in disputes.jury_path("executed")} == {"done"}
    opened = event(
        "GameOpened",
        "ToleranceGame",
        id="0x" + "d2" * 32,
        job="0x" + "11" * 32,
        stage=0,
        accused=A,
        accuser=B,
        bond=5,
    )
    state = {"phase": 3, "status": 1, "endsAt": 1_700_000_060}
    picked = event("Picked", "ToleranceGame", id="0x" + "d2" * 32, child=1, endsAt=1_700_000_060)
    page = disputes.dispute_page(
        opened, state, [opened, picked], (), chain_now_s=1_700_000_000, now_ms=NOW_MS
    )
    assert (page.clock_of, page.clock_left_s) == ("the accused", 60)
    assert [step.state for step in page.path] == ["done", "now", "later", "later", "later", "later"]
    assert [move.side for move in page.moves] == ["accuser", "accused"]
    over = disputes.dispute_page(
        opened, state | {"phase": 10}, [opened], (), chain_now_s=0, now_ms=NOW_MS
    )
    assert over.clock_ends_at is None and {step.state for step in over.path} == {"done"}


def test_a_game_names_the_machine_the_place_and_the_number_on_trial_in_words() -> None:
    job, dispute = "0x" + "11" * 32, "0x" + "d2" * 32
    who = {"accused": A, "accuser": B, "model": "0x" + "22" * 32}
    opened = event("GameOpened", "ToleranceGame", id=dispute, job=job, stage=1, bond=5, **who)
    place = {"section": 11, "op": 3, "row": 0, "segment": 0, "index": 7}
    pointed = event("PointedAt", "ToleranceGame", id=dispute, place=place, endsAt=1)
    trial = OnTrial(Place(11, 3, 0, 0, 7), "linear", 16, None, 1, -0.25, -0.25, "holds")
    state, more = {"phase": 9, "status": 2}, {"trial": trial, "operator": A}
    page = disputes.dispute_page(
        opened, state, [opened, pointed], (), chain_now_s=0, now_ms=NOW_MS, **more
    )
    assert dict(page.moves[1].detail) == {"place": "value 7 of row 0, operator 3, section 11"}
    assert dict(page.moves[0].detail)["model"] == "0x22222222…2222"
    assert dict(page.trial)["so the leaf"] == "holds" and "layer 16" in dict(page.trial)["on trial"]
    plan = [{"operator": B}, {"operator": A}]
    matched = event("JobMatched", "TaskRegistry", job=job, plan=plan)
    assert disputes.accused_operator(opened, matched) == A
    short = event("JobMatched", "TaskRegistry", job=job, plan=plan[:1])
    assert disputes.accused_operator(opened, short) == ""


def test_every_event_of_the_game_and_the_jury_reads_as_a_sentence() -> None:
    """The contracts' own events: a new one needs a sentence and a side here."""
    for contract in ("JuryArbitrator", "ToleranceGame"):
        names = {entry["name"] for entry in artifact(contract)["abi"] if entry["type"] == "event"}
        about_money = {"CreditWithdrawn", "JurorEnrolled", "JurorExitRequested", "JurorStaked"}
        about_money.add("JurorWithdrawn")
        assert names - about_money <= set(disputes.MOVES)


def test_plans_name_the_best_and_keep_the_errors() -> None:
    chain = {"stages": [["a", 0, 4], ["b", 4, 8]], "tokens_per_s": 5.0, "latency_ms": 3.0}
    rates = {"tokens_per_s": {"disjoint": 5.0, "at_most": 6.0}, "token_ms": {"best": 3.0}}
    found_by = {"solve_s": 0.1, "gap": None, "bottleneck": ["b"], "explanation": ["because"]}
    plan = {"pipelines": [chain], "stages": 2, "k": 1, **rates, **found_by}
    worse = {**plan, "tokens_per_s": {"paths": 2.0, "at_most": 6.0}}
    answers = [
        {"method": "x", "plan": worse},
        {"method": "y", "plan": plan},
        {"method": "z", "error": {"what": "no", "why": f"{A} has no room"}},
    ]
    found = planner.plans({"id": "f", "machines": [1, 2]}, answers, "Machines of x", NOW_MS)
    assert (found.best, found.layers, found.machines) == ("y", 8, 2)
    assert found.fleet == "Machines of x"
    assert found.plans[2].error == f"no: {ids.short(ids.Kind.MINER, A)} has no room"


def test_snippets_carry_the_base_url_and_the_model() -> None:
    found = connect("http://127.0.0.1:8080", ("m1", "m2"), NOW_MS, "m2")
    assert all("127.0.0.1:8080" in snippet.text for snippet in found.snippets)
    assert sum("m2" in snippet.text for snippet in found.snippets) >= 6


# --- pictures and figures ---

NASTY = "<script>\"&'</script>"


def parsed(markup: object) -> ET.Element:
    return ET.fromstring(str(markup))


def test_the_time_of_a_link_stands_below_the_rows_label_and_only_where_it_is_known() -> None:
    boxes = [Box("a", "/a", 0, 1, "serving", link_ms=0.5), Box("b", "/b", 1, 8, "serving")]
    known = parsed(pipelines([Row("chain 1   70 ms a token", tuple(boxes))], 8, "x"))
    told = {e.text: float(e.attrib["y"]) for e in known.iter() if e.tag.endswith("text")}
    assert told["0.5 ms ▸"] - told["chain 1   70 ms a token"] >= 12  # a line of text apart
    boxes[0] = replace(boxes[0], link_ms=None)
    unknown = parsed(pipelines([Row("1", tuple(boxes))], 8, "x"))
    assert not [e.text for e in unknown.iter() if "▸" in (e.text or "")]
    assert float(unknown.attrib["height"]) < float(known.attrib["height"])


@pytest.mark.parametrize("count", [1, 2, MOST_CARDS, MOST_CARDS + 1, MOST_SMALL, 40])
def test_a_ring_names_every_machine_and_leads_to_it(count: int) -> None:
    stages = [
        RingStage(f"mnr_{n}", f"/miners/{n}", f"{n}", "1.0 GiB", 0.5, "serving", 2.5)
        for n in range(count)
    ]
    root = parsed(ring(stages, "x"))
    links = [e for e in root.iter() if e.tag.endswith("}a") or e.tag == "a"]
    assert [link.attrib["href"] for link in links] == [stage.href for stage in stages]
    lines = [e for e in root.iter() if e.tag.endswith("line")]
    assert len(lines) == count + 1 and all(e.attrib["class"] == "way flow" for e in lines)
    rects = [e for e in root.iter() if e.tag.endswith("rect")]
    for rect in rects:
        left, top = float(rect.attrib["x"]), float(rect.attrib["y"])
        assert left >= 0 and left + float(rect.attrib["width"]) <= float(root.attrib["width"])
        assert top >= 0 and top + float(rect.attrib["height"]) <= float(root.attrib["height"])


def test_pictures_are_whole_escaped_and_say_what_they_show() -> None:
    boxes = (Box(NASTY, "/x?a=1&b=2", 0, 3, "serving", link_ms=2.5), Box("b", "/b", 3, 4, "gone"))
    pictures = [
        pipelines([Row(NASTY, boxes)], 4, NASTY),
        pipelines([], 0, "nothing"),
        ring([RingStage(NASTY, "/x?a=1&b=2", "0", NASTY, 0.0, "gone")], NASTY),
        bar(3, 4, NASTY),
        progress(0, 0, "none"),
        line_chart([(NOW_MS, 1.0), (NOW_MS, None), (NOW_MS, 5.0)], NASTY, str, NOW_MS, 1000),
        line_chart([], "none", str, NOW_MS, 1000),
        columns([("2026-01-01", 5)], "days", str),
        columns([], "days", str),
        path([("a", "done"), ("b", "now"), (NASTY, "later")], NASTY),
    ]
    for picture in pictures:
        root = parsed(picture)
        assert root.get("aria-label") and root.get("role") in ("img", "group")
        assert "style" not in {key for element in root.iter() for key in element.attrib}
        assert not [element for element in root.iter() if element.tag == "script"]


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (None, "–"),
        (0, "0 %"),
        (1, "100 %"),
        (0.123, "12 %"),
        (0.9999, "99.99 %"),
        (0.999999, "99.99 %"),
        (0.000001, "0.01 %"),
        (0.004, "0.40 %"),
        (0.995, "99.50 %"),
    ],
)
def test_a_share_is_not_rounded_to_all_or_nothing(share: float | None, shown: str) -> None:
    assert present.percent(share) == shown


@given(st.floats(0, 1e12))
def test_an_axis_ends_at_or_above_its_highest_value(value: float) -> None:
    top = nice_ceiling(value)
    assert top >= value * (1 - 1e-9)
    assert top <= value * 10.0001 if value >= 1e-12 else top == 1


@given(st.floats(-1e9, 1e9))
def test_durations_are_short_words(seconds: float) -> None:
    assert re.fullmatch(r"−?[\d,]+(\.\d)? (ms|s|min|h|days|years)", present.duration(seconds))


def test_ids_lead_to_their_pages_and_strangers_text_is_escaped() -> None:
    from core.protocol.ids import Kind

    link = present.id_link(Kind.JOB)("0x" + "11" * 32)
    assert str(link).startswith('<a class="id" href="/jobs/job_')
    assert "<script>" not in str(present.id_link(Kind.MINER)(NASTY))
    assert "<script>" not in str(present.age(NOW_MS, NOW_MS))
    assert str(present.age(None, NOW_MS)).count("never") == 1


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("bond", "25000000", "25usd"),
        ("minJurorStake", "100000000", "100usd"),
        ("commitSeconds", "60", "60 s"),
        ("maxWindowSeconds", "604800", "7 days"),
        ("protocolFeeBps", "50", "0.5 %"),
        ("pausedUntil", "0", "never"),
        ("panelSize", "3", "3"),
        ("feeRecipient", "0x" + "00" * 20, "nobody"),
        ("version", "one", "one"),
    ],
)
def test_a_rule_of_a_contract_has_its_unit(name: str, value: str, shown: str) -> None:
    assert str(present.rule(value, name, format_token)) == shown


def test_every_rule_that_is_asked_for_is_a_function_of_its_contract() -> None:
    for contract, names in RULES.items():
        found = {e["name"] for e in artifact(contract)["abi"] if e["type"] == "function"}
        assert set(names) <= found, contract


def test_the_stages_of_a_plan_are_machines_with_their_layers() -> None:
    plan = [
        {"operator": A, "layerFrom": 0, "layerTo": 1},
        {"operator": B, "layerFrom": 1, "layerTo": 17},
    ]
    args = {"plan": plan, "until": 1_795_341_042, "endsAt": 5}
    event = LoggedEvent(1, 3, 0, "0x" + "ab" * 32, "TaskRegistry", "JobMatched", args, None)
    shown = [(a.name, a.kind, a.note) for a in event_line(event).arguments]
    assert shown == [
        ("plan[0]", "address", "layer 0"),
        ("plan[1]", "address", "layers 1–16"),
        ("until", "moment", ""),
        ("endsAt", "text", ""),
    ]


def test_every_event_of_the_contracts_has_a_sentence_and_no_other_does() -> None:
    named = {
        entry["name"]
        for contract in CONTRACTS
        for entry in artifact(contract)["abi"]
        if entry["type"] == "event"
    }
    assert set(WORDS) == named - {"EIP712DomainChanged"}
    assert all(words[0].isupper() and words.endswith(".") for words in WORDS.values())
