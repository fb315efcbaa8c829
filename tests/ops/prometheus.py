"""The queries that we ship, and a real Prometheus that answers them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml

OPS = Path(__file__).resolve().parents[2] / "ops"
DASHBOARD = OPS / "grafana" / "headrace.json"
CONFIG = OPS / "prometheus" / "prometheus.yml"
RULES = OPS / "prometheus" / "alerts.yml"
SELECTOR = re.compile(r"\b(?:headrace_[a-z0-9_]+|up)\b(?:\{[^}]*\})?")
HISTOGRAM = re.compile(r"_(bucket|sum|count)$")


def why_not() -> str:
    """What is missing to run one, "" if nothing is."""
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not installed (Debian: prometheus)" if missing else ""


def panels() -> list[dict[str, Any]]:
    """Those of the dashboard that show something."""
    return [p for p in json.loads(DASHBOARD.read_text())["panels"] if p["type"] != "row"]


def queries() -> dict[str, str]:
    """Every query of the dashboard, by panel and letter, with the variables of Grafana."""
    found = {}
    for panel in panels():
        for target in panel["targets"]:
            name = f"{panel['id']} {panel['title']} {target['refId']}"
            found[name] = target["expr"].replace("$__rate_interval", "10s")
    return found


def alerts() -> dict[str, str]:
    """Every alert's condition by its name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def selectors(query: str) -> list[str]:
    """The metrics that a query reads, each with its labels."""
    return SELECTOR.findall(query)


def metric_of(selector: str) -> str:
    """The family's name, without labels and without what histograms append."""
    return HISTOGRAM.sub("", selector.partition("{")[0])


@contextmanager
def running(folder: Path, targets: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Our own configuration, over these `host:port`s by job, twice a second. The URL of its API."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
    for scrape in config["scrape_configs"]:
        scrape["static_configs"] = [{"targets": list(targets[scrape["job_name"]])}]
    folder.mkdir()
    file = folder / CONFIG.name
    file.write_text(yaml.safe_dump(config))
    shutil.copy(RULES, folder / RULES.name)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process, folder / "log")
        yield url
    finally:
        process.terminate()
        process.wait(20)


def ask(url: str, query: str) -> list[dict[str, Any]]:
    """What Prometheus answers now."""
    answer = httpx2.get(f"{url}/api/v1/query", params={"query": query}, timeout=10).json()
    assert answer["status"] == "success", (query, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            if httpx2.get(f"{url}/-/ready", timeout=2).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(log.read_text())
        time.sleep(0.1)
