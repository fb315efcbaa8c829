"""Is the frame of all programs as documented: options, streams, exit codes, interrupts, speed?"""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.keys.keystore import Keystore

PROGRAM = Path(__file__).with_name("frame_program.py")
ROOT = Path(__file__).parents[4]
EXITS = {
    "HeadraceError": 1,
    "UsageError": 2,
    "ChainUnreachable": 3,
    "WrongPassword": 4,
    "TokenShort": 5,
    "ContractRefused": 6,
    "NoCapacity": 7,
    "DeadlinePassed": 8,
    "CheckFailed": 9,
    "Interrupted": 130,
    "KeyboardInterrupt": 130,
    "bug": 1,
}


@pytest.fixture
def environ(tmp_path):
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HEADRACE_", "ETH_", "COV_"))
    }
    return {**clean, "HEADRACE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def call(environ, monkeypatch, capsys):
    """Run the program in this process: (exit code, stdout, stderr)."""
    import importlib.util

    for key in list(os.environ):
        if key.startswith(("HEADRACE_", "ETH_")):
            monkeypatch.delenv(key)
    monkeypatch.setenv("HEADRACE_HOME", environ["HEADRACE_HOME"])
    spec = importlib.util.spec_from_file_location("frame_program", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "frame_program", module)
    spec.loader.exec_module(module)

    def run(*arguments):
        code = module.app.main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def start(environ, *arguments, **more):
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


def until_ready(file, process):
    deadline = time.monotonic() + 30
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("name", "code"), EXITS.items())
def test_each_error_has_its_exit_code_and_four_lines(call, name, code):
    got, out, err = call("fail", name)
    assert got == code
    assert out == ""
    assert [line.split(":")[0].split(" ")[0] for line in err.splitlines()] == [
        "error",
        "why",
        "state",
        "next",
    ]


@pytest.mark.parametrize(("name", "code"), EXITS.items())
def test_with_json_the_error_is_one_document_with_its_code(call, name, code):
    got, out, _ = call("fail", name, "--json")
    document = json.loads(out)
    assert got == code
    assert (document["ok"], document["schema"]) == (False, "headrace.error/1")
    assert document["error"]["code"].startswith("E-")


def test_a_bug_names_a_debug_file_and_shows_no_key(call, environ):
    _, _, err = call("fail", "bug")
    [file] = Path(environ["HEADRACE_HOME"], "state", "crashes").iterdir()
    assert str(file) in err
    assert "Traceback" in file.read_text()
    assert "4c" * 32 not in err + file.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--network", "x", "-v", "options"),
        ("options", "--network", "x", "-v"),
        ("--network", "y", "-vv", "options", "--network", "x", "-v"),
    ],
)
def test_global_options_go_before_or_after_the_command(call, arguments):
    code, out, _ = call(*arguments, "--json")
    assert code == 0
    assert json.loads(out) == {
        "schema": "headrace.prog.options/1",
        "ok": True,
        "result": {"network": "x", "verbose": 1, "own": None},
    }


def test_global_options_work_inside_a_group_too(call):
    for arguments in (
        ("--yes", "stake", "add", "5usd", "--json"),
        ("stake", "--yes", "--json", "add", "5usd"),
        ("stake", "add", "--yes", "5usd", "--json"),
    ):
        code, out, _ = call(*arguments)
        assert (code, json.loads(out)["result"]) == (0, {"staked": "5usd"})


def test_a_commands_own_option_wins_over_a_global_one_of_that_name(call):
    _code, out, _ = call("options", "--timeout", "3", "--json")
    assert json.loads(out)["result"]["own"] == 3.0


@pytest.mark.parametrize(
    "arguments",
    [("nope",), ("options", "--netwrok", "x"), ("stake", "add"), ("options", "--timeout", "x"), ()],
)
def test_wrong_use_is_exit_2_with_four_lines(call, arguments):
    code, _, err = call(*arguments)
    assert code == 2
    assert "error E-USAGE-01" in err
    assert "--help" in err.splitlines()[-1]


def test_a_raw_key_on_the_command_line_is_refused_before_anything_runs(call, environ):
    code, out, err = call("stake", "add", "0x" + "4c" * 32, "--yes")
    assert code == 2
    assert "E-KEY-01" in err
    assert "4c" * 32 not in out + err
    assert not Path(environ["HEADRACE_HOME"]).exists()


def test_the_summary_is_shown_even_with_yes_and_results_alone_are_on_stdout(call):
    code, out, err = call("stake", "add", "5usd", "--yes")
    assert code == 0
    assert out.split() == ["staked", "5.00", "usd"]
    assert "amount   5usd" in err
    assert "[1/1] locking  2/2 steps" in err


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_without_a_terminal_or_with_json_nothing_is_asked(call, more):
    code, _, err = call("stake", "add", "5usd", *more)
    assert code == 2
    assert "--yes" in err.splitlines()[-1]


@pytest.mark.parametrize("more", [(), ("--yes",)])
def test_dry_run_stops_after_the_summary(call, more):
    code, out, err = call("stake", "add", "5usd", "--dry-run", "--json", *more)
    assert code == 0
    assert json.loads(out)["result"]["dry_run"] is True
    assert "amount   5usd" in err
    assert "locking" not in err


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 130), ("n\n", 130)])
def test_on_a_terminal_the_question_is_asked_and_no_is_the_default(environ, answer, code):
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "stake", "add", "5usd"],
        env=environ,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(master, 4096)
    os.write(master, answer.encode())
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:
            break
        if not data:
            break
        shown += data
    assert process.wait(30) == code
    os.close(master)
    assert (b"staked" in shown) == (code == 0)


def test_an_amount_without_unit_is_exit_2(call):
    code, _, err = call("stake", "add", "500", "--yes")
    assert code == 2
    assert "500usd" in err


def test_commands_that_follow_print_one_json_line_each(call):
    _, out, _ = call("follow", "--json")
    assert [json.loads(line)["result"]["number"] for line in out.splitlines()] == [0, 1, 2]


def test_lists_become_tables_and_brackets_are_not_markup(call):
    _, out, _ = call("table")
    assert "a[b]" in out
    assert "x, y" in out


def test_quiet_keeps_results_and_errors_only(call):
    _, out, err = call("stake", "add", "5usd", "--yes", "-q")
    assert "5.00 usd" in out
    assert "locking" not in err


def test_errors_inside_a_task_group_are_reported_as_themselves(call):
    code, _, err = call("group-fail")
    assert code == 3
    assert "mnr_1 does not answer" in err
    code, _, err = call("group-fail", "--bug")
    assert code == 1


def test_timeout_is_exit_8_with_the_command_to_resume(call):
    code, _, err = call("--timeout", "0.05", "wait")
    assert code == 8
    assert "resume with: prog --timeout 0.05 wait" in err


def test_version_is_printed(call):
    code, out, _ = call("--version")
    assert (code, out.split()[0]) == (0, "headrace")
    assert call("options", "--version")[0] == 0


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("serve", signal.SIGINT, 130),
        ("serve", signal.SIGTERM, 0),
        ("wait", signal.SIGINT, 130),
        ("wait", signal.SIGTERM, 130),
    ],
)
def test_the_first_signal_stops_cleanly(environ, tmp_path, command, number, code):
    ready = tmp_path / "ready"
    process = start(environ, command, "--ready", str(ready))
    until_ready(ready, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in err
    if command == "serve":
        assert "stopped cleanly" in err


def test_the_second_signal_leaves_at_once(environ, tmp_path):
    ready = tmp_path / "ready"
    process = start(environ, "serve", "--hang", "--ready", str(ready))
    until_ready(ready, process)
    process.send_signal(signal.SIGINT)
    while "stopped cleanly" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_a_reader_that_leaves_is_not_an_error(environ):
    process = start(environ, "follow", "--count", "100000", "--json")
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_help_imports_nothing_heavy_and_is_quick(environ):
    probe = (
        "import sys, time; t = time.perf_counter(); sys.argv = ['prog', '--help'];"
        "import runpy\n"
        f"try: runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'pydantic', 'structlog', 'torch', 'transformers', 'web3', 'hivemind', "
        "'eth_account',"
        " 'eth_keyfile', 'fastapi', 'numpy', 'sqlmodel', 'prometheus_client'} & set(sys.modules)\n"
        "print(sorted(heavy), time.process_time(), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    heavy, _, used_s = done.stderr.strip().rpartition(" ")
    assert heavy == "[]"
    assert "Exit codes" in done.stdout
    assert float(used_s) < 3  # 0.3 s alone; crowded processors count more


def test_the_wallet_opens_with_a_password_file_and_not_with_a_wrong_one(call, tmp_path):
    signer = Keystore(tmp_path / "ks", light=True).create("alice", "pw", chain_id=5)
    for name, text in (("good", "pw\n"), ("bad", "no\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "net.toml").write_text('chain_id = 5\nrpc_url = "http://127.0.0.1:1"')
    (tmp_path / "c.toml").write_text(f'[wallet]\nkeystore_dir = "{tmp_path / "ks"}"')
    common = (
        "unlock",
        "--network",
        str(tmp_path / "net.toml"),
        "--config",
        str(tmp_path / "c.toml"),
    )
    code, out, _ = call(
        *common, "--wallet", "alice", "--password-file", str(tmp_path / "good"), "--json"
    )
    assert (code, json.loads(out)["result"]["address"]) == (0, signer.address)
    assert call(*common, "--wallet", "alice", "--password-file", str(tmp_path / "bad"))[0] == 4
    code, _, err = call(*common, "--wallet", "alice")
    assert code == 4
    assert "--password-file" in err
    code, _, err = call(*common)
    assert code == 4
    assert "--wallet" in err
    assert call(*common, "--wallet", "bob")[0] == 4


def test_config_show_set_and_path_are_part_of_every_program(call, environ):
    assert call("config", "set", "miner.name", "desk")[0] == 0
    code, out, _ = call("config", "show", "miner.name", "--origin", "--json")
    [row] = json.loads(out)["result"]
    assert (row["value"], row["origin"].split()[0]) == ("desk", "file")
    code, _, err = call("config", "show", "miner.nam")
    assert code == 2
    assert "miner.name" in err
    code, out, _ = call("config", "path", "--json")
    assert json.loads(out)["result"]["state"] == str(Path(environ["HEADRACE_HOME"], "state"))
    assert "miner.price_out" in call("config", "show")[1]


def test_an_unknown_setting_in_the_file_is_exit_2_for_every_command(call, environ):
    Path(environ["HEADRACE_HOME"], "config").mkdir(parents=True)
    Path(environ["HEADRACE_HOME"], "config", "config.toml").write_text("[miner]\nnam = 'x'\n")
    code, _, err = call("stake", "add", "5usd", "--yes")
    assert code == 2
    assert "did you mean 'miner.name'" in err


def test_debug_save_bundles_without_secrets(call, tmp_path):
    import zipfile

    call("fail", "bug")
    code, _out, _ = call("debug", "save", str(tmp_path / "b.zip"), "--json")
    assert code == 0
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        names = bundle.namelist()
        text = "".join(bundle.read(name).decode() for name in names)
    assert {"versions.json", "config.json"} <= set(names)
    assert any(name.startswith("logs/prog-") for name in names)
    assert any(name.startswith("crashes/prog-") for name in names)
    assert "4c" * 32 not in text
    assert call("debug", "save", str(tmp_path / "b.zip"))[0] == 2
