"""Can a key be given other limits from the command line, and its use be told as a table?"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from client.gateway.money.keyring import KeyLimits, changes_of
from core.protocol.errors import AmountInvalid, IdInvalid, UsageError
from core.runtime.commands.spreadsheet import csv_text
from tests.client.gateway.world import World


def test_what_is_typed_changes_and_the_rest_stays(world: World) -> None:
    secret = world.new_key("alice", budget_units=5, requests_per_minute=60, tags=("old",))
    now, settings = world.clock.now(), world.settings

    def change(**typed: object) -> KeyLimits:
        changes = changes_of(settings, now, typed)
        return world.run(world.gateway.keys.change("alice", changes)).limits

    assert change(rate="2/s", models=["toy"]).requests_per_minute == 120
    limits = world.key(secret).limits
    assert (limits.budget_units, limits.models, limits.tags) == (5, ("toy",), ("old",))
    limits = change(budget="none", models=["none"], rate="none", tags=["a", "b"], expires="30d")
    assert limits == KeyLimits(expires_at=int(now) + 30 * 86400, tags=("a", "b"))
    assert change(budget="1usd/day").budget_period == "day"
    assert changes_of(settings, now, {"budget": None, "models": ()}) == {}
    with pytest.raises(AmountInvalid):
        change(budget="5usd/week")
    with pytest.raises(IdInvalid):
        world.run(world.gateway.keys.change("bob", {}))
    world.run(world.gateway.keys.revoke("alice"))
    with pytest.raises(UsageError, match="was revoked"):
        change(rate="1/m")


def test_the_commands_change_a_key_and_tell_its_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from client.cli import main

    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))

    def run(*words: str) -> str:
        code, (out, err) = main(list(words)), capsys.readouterr()
        assert code == 0, err
        return out

    run("keys", "new", "alice", "--budget", "1usd", "--tags", "team-a")
    shown = json.loads(run("--json", "keys", "set", "alice", "--rate", "9/m", "--tags", "none"))
    assert shown["result"]["rate"] == "9/m" and shown["result"]["tags"] == ""
    assert shown["result"]["budget"].startswith("1")
    head = next(csv.reader(io.StringIO(run("keys", "usage", "--csv"))))
    assert head[:4] == ["day", "key", "tags", "model"]
    assert "[red]x[/red] = y" in run("config", "set", "gateway.aliases", "[red]x[/red] = y")


def test_a_dry_run_writes_nothing_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from client.cli import main

    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    for words in (
        ("keys", "new", "alice"),
        ("keys", "set", "alice", "--rate", "1/m"),
        ("keys", "revoke", "alice"),
        ("pages",),
        ("wallet", "new", "alice"),
        ("wallet", "import", "alice", "--stdin"),
        ("config", "set", "gateway.port", "8081"),
    ):
        assert main(["--dry-run", "--json", *words]) == 0, capsys.readouterr().err
        assert json.loads(capsys.readouterr().out)["result"]["dry_run"] is True
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in left} <= {".log"}  # of what the program did


def test_no_cell_begins_a_formula() -> None:
    text = csv_text(("a", "b"), [("=1+1", -3), ("-x", 'say "x", y'), ("plain", None)])
    assert text == 'a,b\n\'=1+1,-3\n\'-x,"say ""x"", y"\nplain,\n'
