"""Does a stage report its progress by lines when there is no terminal?"""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from core.protocol.errors import Interrupted
from core.protocol.units import money_for_people
from core.runtime.commands.console import GlobalOptions, Run, StageProgress, _as_table
from core.runtime.folders import Folders


class Time:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def stage(total=120):
    said, time = [], Time()
    return StageProgress("[2/4] generating", total, "requests", said.append, time), said, time


def test_a_line_is_said_every_ten_seconds_and_one_at_the_end():
    one, said, time = stage()
    for _ in range(100):
        time.now += 0.5
        one.advance()
    assert len(said) == 5
    one.finish()
    assert said[-1] == "[2/4] generating  100/120 requests  2.0/s  left 00:10  50.0s"


def test_the_status_has_done_total_rate_time_left_and_note():
    one, _, time = stage()
    time.now = 30.0
    one.set(60, "cost 3usd")
    assert one.status() == "60/120 requests  2.0/s  left 00:30  cost 3usd"


def test_a_stage_without_total_counts():
    one, said, time = stage(total=None)
    time.now = 2.0
    one.advance(4)
    one.finish()
    assert said == ["[2/4] generating  4 requests  2.0/s  2.0s"]


def test_the_schema_names_program_and_command(tmp_path):
    run = Run("client", "wallet ls", GlobalOptions(), folders=Folders.at(tmp_path))
    assert run.schema == "headrace.client.wallet.ls/1"


async def test_what_is_followed_ends_with_what_was_waited_for(tmp_path, capsys):
    run = Run("prog", "ls", GlobalOptions(json=True), folders=Folders.at(tmp_path))
    seen = iter(([1], [1, 2], [1, 2, 3]))

    async def look():
        return next(seen)

    await run.follow(look, every_s=0.0, until=lambda found: len(found) == 2)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["result"] for line in said] == [[1], [1, 2]]
    assert next(seen) == [1, 2, 3], "nobody looked again"


async def test_what_is_followed_is_said_again_only_when_it_is_another_one(tmp_path, capsys):
    run = Run("prog", "ls", GlobalOptions(json=True), folders=Folders.at(tmp_path))
    seen = iter(([1], [1], [1, 2]))

    async def look():
        try:
            return next(seen)
        except StopIteration:
            raise Interrupted from None

    with pytest.raises(Interrupted):
        await run.follow(look, every_s=0.0)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["result"] for line in said] == [[1], [1, 2]]


def test_money_is_aligned_and_everything_else_is_as_it_was():
    rows = [
        {"name": "a", "paid": "0.007913usd", "memory": "2GiB"},
        {"name": "b", "paid": "1234567.5usd", "memory": "10usdish"},
        {"name": "c", "paid": None, "memory": ""},
    ]
    screen = Console(width=60, file=io.StringIO(), no_color=True)
    screen.print(_as_table(rows, money_for_people))
    lines = screen.file.getvalue().splitlines()
    ends = [line.index("usd ") for line in lines[1:3]]
    assert "0.0079 usd" in lines[1] and "1,234,567.50 usd" in lines[2]
    assert len(set(ends)) == 1 and "2GiB" in lines[1] and "10usdish" in lines[2]


def test_rows_in_a_cell_are_said_by_their_fields():
    screen = Console(width=60, file=io.StringIO(), no_color=True)
    limits = [{"layers": 6, "t": 3e-05}, {"layers": 30, "t": 1e-4}]
    screen.print(_as_table({"tolerances": limits}, money_for_people))
    assert "layers 6 t 3e-05, layers 30 t 0.0001" in screen.file.getvalue()


def test_every_log_begins_with_the_network(tmp_path: Path) -> None:
    folders = Folders.at(tmp_path)
    folders.networks.mkdir(parents=True)
    contracts = {"TaskRegistry": "0x" + "11" * 20}
    network = {"chain_id": 31337, "rpc_url": "http://127.0.0.1:1", "contracts": contracts}
    (folders.networks / "riverside.json").write_text(json.dumps(network))
    run = Run("prog", "start", GlobalOptions(network="riverside"), daemon=True, folders=folders)
    run.load()
    assert run.log_file is not None
    said = [json.loads(line) for line in run.log_file.read_text().splitlines()]
    (told,) = [line for line in said if line["event"] == "network"]
    assert (told["name"], told["chain_id"]) == ("riverside", 31337)
    assert told["contract"] == contracts["TaskRegistry"]
