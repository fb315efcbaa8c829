"""Do units, image and compose file name only what there is: programs, options, settings, files?"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from core.runtime.folders import Folders
from core.runtime.settings import Settings, load

ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "ops"
UNITS = sorted((OPS / "systemd").glob("*.service"))
COMPOSE = OPS / "docker" / "compose.yml"
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "RestrictSUIDSGID": "yes",
    "CapabilityBoundingSet": "",
    "User": "headrace",
}


def assert_command(argv: list[str]) -> None:
    """That one of our programs has this command with these options."""
    from importlib import import_module

    module, _, name = SCRIPTS[argv[0]].partition(":")
    assert name == "main"
    command: Any = get_command(import_module(module).app.typer)
    for at, word in enumerate(argv[1:], 1):
        if not hasattr(command, "commands"):
            options = {option for param in command.params for option in param.opts}
            assert {w for w in argv[at:] if w.startswith("-")} <= options, argv
            return
        assert word in command.commands, argv
        command = command.commands[word]
    assert not hasattr(command, "commands"), argv


def settings_of(environ: dict[str, str], folder: Path) -> Settings:
    """The settings that a daemon would have; raises ConfigKeyUnknown for an unknown variable."""
    return load(environ=environ, folders=Folders.at(folder))


def unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """A unit's sections, each key with all its values."""
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_daemon_that_there_is_with_settings_that_there_are(
    path: Path, tmp_path: Path
) -> None:
    service = unit(path)["Service"]
    argv = shlex.split(service["ExecStart"][0])
    prefix, name = argv[0].rsplit("/", 1)
    assert prefix == "/opt/headrace/bin"
    assert_command([name, *argv[1:]])
    environ = dict(pair.split("=", 1) for pair in service["Environment"])
    settings = settings_of(environ, tmp_path)
    state = f"/var/lib/headrace/{path.stem.removeprefix('headrace-')}"
    assert environ["HEADRACE_HOME"] == service["WorkingDirectory"][0] == state
    assert settings.log.format == "json" and settings.wallet.keystore_dir == Path(
        state, "keystores"
    )
    for key, value in HARDENED.items():
        assert service[key] == [value], key


def test_there_is_a_unit_for_every_daemon() -> None:
    started = {
        shlex.split(unit(path)["Service"]["ExecStart"][0])[0].rsplit("/", 1)[1] for path in UNITS
    }
    assert started == {"client", "matcher", "miner", "auditor"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    files = []
    for path in UNITS:  # our programs are elsewhere here
        program = tmp_path / path.stem
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        text = re.sub(r"ExecStart=\S+", f"ExecStart={program}", path.read_text())
        files.append(tmp_path / path.name)
        files[-1].write_text(text)
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, files)], capture_output=True, text=True
    )
    ours = [line for line in (told.stdout + told.stderr).splitlines() if "headrace-" in line]
    assert told.returncode == 0 and not ours, told.stdout + told.stderr


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_compose_starts_daemons_that_there_are_with_settings_that_there_are(tmp_path: Path) -> None:
    ours = {name: s for name, s in services().items() if s["image"] == "headrace"}
    assert set(ours) == {"gateway", "matcher", "miner"}
    for name, service in ours.items():
        assert_command(list(service["command"]))
        environ = {k: re.sub(r"\$\{[^}]*\}", "x", v) for k, v in service["environment"].items()}
        network = tmp_path / "network.json"
        network.write_text('{"name": "x"}')
        environ["HEADRACE_NETWORK"] = str(network)
        settings = settings_of(environ, tmp_path)
        published = {int(str(port).rsplit(":", 1)[1]) for port in service["ports"]}
        listening = {
            "gateway": {settings.gateway.port},
            "matcher": {settings.matcher.listen_port, settings.matcher.swarm_port},
            "miner": {settings.miner.listen_port},
        }[name]
        assert published == listening, name


def test_compose_and_image_name_files_that_there_are() -> None:
    variables = set(re.findall(r"\$\{([A-Z_]+)", COMPOSE.read_text()))
    example = configparser.ConfigParser()
    example.read_string("[x]\n" + (COMPOSE.parent / ".env.example").read_text())
    assert variables == {name.upper() for name in example["x"]}
    document = yaml.safe_load(COMPOSE.read_text())
    for name, service in services().items():
        assert set(service["profiles"]) <= {"all", "requester", "matcher", "miner", "watch"}
        for volume in service["volumes"]:
            source = str(volume).partition(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), (name, source)
            elif not source.startswith("$"):
                assert source in document["volumes"], (name, source)
    build = document["x-daemon"]["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert context == ROOT and (context / build["dockerfile"]).is_file()
    image = (ROOT / build["dockerfile"]).read_text()
    copied = [
        source
        for line in image.splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    ]
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert set(wheel["targets"]["wheel"]["packages"]) <= set(copied)
    assert all((ROOT / source).exists() for source in copied)
    extras = re.search(r"'\.\[([a-z,]+)\]'", image)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras is not None and set(extras[1].split(",")) <= set(known)
    command = re.search(r"^CMD (.*)$", image, re.M)
    assert command is not None
    assert_command(yaml.safe_load(command[1]))


def test_what_prometheus_asks_in_compose_is_who_answers_there(tmp_path: Path) -> None:
    config = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())
    asked = {s["job_name"]: s["static_configs"][0]["targets"][0] for s in config["scrape_configs"]}
    environ = {name: s.get("environment", {}) for name, s in services().items()}
    assert asked == {
        "gateway": f"gateway:{environ['gateway']['HEADRACE_GATEWAY__METRICS_PORT']}",
        "matcher": f"matcher:{environ['matcher']['HEADRACE_MATCHER__LISTEN_PORT']}",
        "miner": f"miner:{environ['miner']['HEADRACE_MINER__METRICS_PORT']}",
    }
    alone = yaml.safe_load((OPS / "prometheus" / "prometheus.yml").read_text())
    ports = {s["job_name"]: s["static_configs"][0]["targets"][0] for s in alone["scrape_configs"]}
    targets = {s["job_name"]: s["static_configs"][0]["targets"] for s in alone["scrape_configs"]}
    units = {path.stem: unit(path)["Service"]["Environment"] for path in UNITS}
    for name, variable, target in (
        ("headrace-gateway", "HEADRACE_GATEWAY__METRICS_PORT", targets["gateway"][0]),
        ("headrace-miner", "HEADRACE_MINER__METRICS_PORT", targets["miner"][0]),
        ("headrace-juror", "HEADRACE_AUDITOR__METRICS_PORT", targets["auditor"][0]),
        ("headrace-auditor", "HEADRACE_AUDITOR__METRICS_PORT", targets["auditor"][1]),
    ):
        assert f"{variable}={target.rpartition(':')[2]}" in units[name]
    defaults = settings_of({}, tmp_path)
    assert ports["matcher"].endswith(f":{defaults.matcher.listen_port}")


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_compose_itself_takes_the_file(tmp_path: Path) -> None:
    told = subprocess.run(["docker", "compose", "version"], capture_output=True, text=True)
    if told.returncode:
        pytest.skip("docker has no compose here")
    filled = tmp_path / "env"
    text = (COMPOSE.parent / ".env.example").read_text()
    filled.write_text(re.sub(r"=$", "=x", text, flags=re.M))
    told = subprocess.run(
        [
            "docker",
            "compose",
            "--env-file",
            str(filled),
            "-f",
            str(COMPOSE),
            "--profile",
            "all",
            "config",
            "--quiet",
        ],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr


def test_programs_start_without_the_extras() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = sys.modules['opentelemetry.sdk'] = None\n"
        "from matcher.cli import main; raise SystemExit(main(['--help']))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
