"""Every daemon counts under names that Prometheus takes, and our dashboard asks for no others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from client.commands.judge.jury_service import JuryMetrics
from client.commands.judge.watch_service import WatchMetrics
from client.gateway.balance_watch import EVENTS as OF_GATEWAY
from client.gateway.metrics import GatewayMetrics
from core.runtime.alerts import Alerts
from core.runtime.clock import SystemClock
from core.runtime.metrics import Metrics
from matcher.api.api import make_app
from miner.daemon.stake_watch import EVENTS as OF_MINER
from miner.records.metrics import EngineMetrics, MinerMetrics
from tests.ops import prometheus
from tests.town.matcher import Net

JOBS = ("gateway", "matcher", "miner", "auditor")
#: What a miner knows only once it has neighbours and has run a step.
LATER = {"headrace_link_seconds", "headrace_tau_seconds", "headrace_kv_bytes"}


def of_gateway() -> Metrics:
    metrics = GatewayMetrics()
    Alerts(metrics.registry, SystemClock(), events=OF_GATEWAY)
    return metrics.registry


def of_miner() -> Metrics:
    metrics = MinerMetrics()
    Alerts(metrics.registry, SystemClock(), events=OF_MINER)
    metrics.update(
        counts={"E-PEER-AUTH": 1, "request_failed_E-NET-03": 1},
        streams={"FrameTooLarge": 1},
        finished=1,
        tokens_in=1,
        tokens_out=1,
        active=0,
        free=1,
        engine=EngineMetrics(tau_ms_by_rows={1: 2.0}, kv_bytes={"device": 1, "host": 0}),
        chain_up=True,
        rho_ms={"0x1": 1.0},
    )
    metrics.standing(5, 4, 10**18, 0)
    return metrics.registry


def of_auditor() -> Metrics:
    metrics = JuryMetrics()
    metrics.follow(lambda: 2, lambda: True)
    metrics.holds(7, 10**18)
    return metrics.registry


def of_matcher(folder: Path) -> Metrics:
    metrics, net = Metrics(), Net(folder)
    daemon = net.daemon
    daemon = type(daemon)(
        net.chain,  # type: ignore[arg-type]
        net.swarm,
        net.peers,
        daemon.signer,
        daemon.store,
        metrics,
        net.clock,
        daemon.matchmaker._terms,
        daemon.rules,
    )
    make_app(
        daemon.world,
        daemon.store,
        daemon.matchmaker,
        daemon.settler,
        daemon.reports,
        daemon.audits,
        metrics,
        net.clock,
        {},
    )
    for store in net.stores:
        store.close()
    return metrics


@pytest.fixture
def rendered(tmp_path: Path) -> dict[str, str]:
    """What each daemon answers at /metrics."""
    made = {
        "gateway": of_gateway(),
        "matcher": of_matcher(tmp_path),
        "miner": of_miner(),
        "auditor": of_auditor(),
        "watch": WatchMetrics().registry,
    }
    return {job: metrics.render()[0].decode() for job, metrics in made.items()}


def names_in(text: str) -> set[str]:
    """Names of families, as they are written in queries."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.skipif(bool(prometheus.why_not()), reason=prometheus.why_not())
def test_promtool_has_nothing_to_say(rendered: dict[str, str]) -> None:
    for job, text in rendered.items():
        told = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
        )
        assert (told.returncode, told.stdout + told.stderr) == (0, ""), job


def test_the_metrics_of_the_design_are_there(rendered: dict[str, str]) -> None:
    for job, wanted in {
        "gateway": "requests_total tokens_total time_to_first_token_seconds inter_token_seconds "
        "request_seconds inflight_requests cost_units_total balance_units locked_units "
        "reroutes_total audit_checks_total alerts",
        "matcher": "disputes registry_peers registry_age_seconds orders_total jobs balance_wei "
        "chain_up queue_length",
        "miner": "requests_total stage_seconds batch_rows kv_bytes link_seconds queue_length "
        "stake_units disputes alerts",
        "watch": "audit_checks_total audit_jobs chain_up",
        "auditor": "disputes votes_total chain_up stake_units balance_wei",
    }.items():
        missing = {f"headrace_{name}" for name in wanted.split()} - names_in(rendered[job])
        assert not missing, job


def test_labels_are_few_and_none_tells_who_or_what(rendered: dict[str, str]) -> None:
    allowed = {
        "model",
        "outcome",
        "direction",
        "reason",
        "result",
        "account",
        "status",
        "state",
        "kind",
        "rows",
        "which",
        "place",
        "event",
        "vote",
        "phase",
        "le",
        "quantile",
    }
    for job, text in rendered.items():
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                assert set(sample.labels) <= allowed, (job, sample)
                assert not any(value.startswith("0x") for value in sample.labels.values()), job


def test_every_query_asks_for_metrics_that_a_daemon_has(rendered: dict[str, str]) -> None:
    known = set().union(*map(names_in, rendered.values())) | {"up"}
    asked = {**prometheus.queries(), **prometheus.alerts()}
    assert len(prometheus.queries()) > 40 and len(prometheus.alerts()) > 10
    for name, query in asked.items():
        found = prometheus.selectors(query)
        assert found, name
        for selector in found:
            metric = prometheus.metric_of(selector)
            metric = metric if metric in known else selector.partition("{")[0]
            assert metric in known, (name, selector)
            for job in JOBS:
                if f'job="{job}"' in selector:
                    assert metric in names_in(rendered[job]), (name, selector)


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    board: dict[str, Any] = json.loads(prometheus.DASHBOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + dx, place["y"] + dy)
            for dx in range(place["w"])
            for dy in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    for panel in prometheus.panels():
        assert panel["datasource"]["uid"] == "${datasource}" and panel["targets"]
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource"]


@pytest.mark.skipif(bool(prometheus.why_not()), reason=prometheus.why_not())
def test_prometheus_takes_our_files_and_the_alerts_fire_when_they_should() -> None:
    for argv in (
        ["check", "config", str(prometheus.CONFIG)],
        ["check", "rules", str(prometheus.RULES)],
        ["test", "rules", str(Path(__file__).with_name("alerts_fire.yml"))],
    ):
        told = subprocess.run(["promtool", *argv], capture_output=True, text=True)
        assert told.returncode == 0, told.stdout + told.stderr
