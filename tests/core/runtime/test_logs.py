"""Do logs reach stderr and the run's file, with bound ids and without secrets?"""

import io
import json
import logging
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.keys.signer import Signer
from core.runtime import logs
from core.runtime.redact import HIDDEN, redact, redact_text

KEY = "4c" * 32


@pytest.fixture(autouse=True)
def restore():
    yield
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if getattr(handler, "_headrace", False):
            root.removeHandler(handler)
            handler.close()
    logs.structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_json_off_a_terminal_and_carry_bound_ids():
    stream = io.StringIO()
    logs.set_up("miner", stream=stream)
    with logs.bound(job="job_7QK3"):
        logs.get_logger("miner.serving.stage").info("served", tokens=3)
    logging.getLogger("uvicorn").warning("from a %s", "library")
    ours, theirs = lines(stream)
    assert ours["job"] == "job_7QK3"
    assert (ours["event"], ours["tokens"], ours["level"]) == ("served", 3, "info")
    assert (theirs["event"], theirs["logger"]) == ("from a library", "uvicorn")


def test_lines_are_pretty_on_a_terminal():
    stream = Terminal()
    logs.set_up("miner", stream=stream)
    logs.get_logger("x").info("served")
    assert "served" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_the_file_gets_debug_lines_that_stderr_does_not(tmp_path):
    stream = io.StringIO()
    file = logs.set_up("miner", level="warning", folder=tmp_path / "logs", stream=stream)
    logs.get_logger("x").debug("detail")
    assert stream.getvalue() == ""
    assert "detail" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_setting_up_again_changes_the_level_and_keeps_the_file(tmp_path):
    first, second = io.StringIO(), io.StringIO()
    file = logs.set_up("miner", level="warning", folder=tmp_path, stream=first)
    early = logs.get_logger("x")
    assert logs.set_up("miner", level="info", file=file, stream=second) == file
    early.info("now")
    assert "now" in second.getvalue()
    assert file.read_text().count("now") == 1
    assert first.getvalue() == ""


def test_only_the_newest_runs_are_kept(tmp_path):
    for number in range(30):
        (tmp_path / f"miner-20200101T0000{number:02d}Z-1.log").write_text("")
    (tmp_path / "client-20200101T000000Z-1.log").write_text("")
    logs.set_up("miner", folder=tmp_path, stream=io.StringIO())
    assert len(list(tmp_path.glob("miner-*.log"))) == logs.RUNS_KEPT
    assert len(list(tmp_path.glob("client-*.log"))) == 1


def test_a_full_file_is_followed_by_another_and_each_line_is_formed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "FILE_BYTES", 1000)
    file = logs.set_up("miner", level="error", folder=tmp_path, stream=io.StringIO())
    saved = logging.getLogger().handlers[-1]
    formed, form = [], saved.format
    monkeypatch.setattr(saved, "format", lambda record: formed.append(1) or form(record))
    log = logs.get_logger("x")
    for number in range(12):
        log.info("a line", number=number)
    older = file.with_name(file.name + ".1")
    assert 1000 <= older.stat().st_size < 1400 and 0 < file.stat().st_size < 1000
    assert [
        json.loads(line)["number"] for line in (older.read_text() + file.read_text()).splitlines()
    ] == list(range(12))
    assert len(formed) == 12
    assert stat.S_IMODE(older.stat().st_mode) == stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_no_form_of_log_line_shows_a_key_or_password(tmp_path, form):
    stream = Terminal() if form == "pretty" else io.StringIO()
    file = logs.set_up("miner", form=form, folder=tmp_path, stream=stream)
    log = logs.get_logger("x")
    signer = Signer(bytes.fromhex(KEY), chain_id=1)
    log.info(f"opened {KEY}", key=KEY, raw=bytes.fromhex(KEY), deep=[{"a": "0x" + KEY}])
    log.info("signer", signer=signer, password="hunter2", args={"api_key": "hunter2"})
    logging.getLogger("lib").warning("key %s", KEY)
    secret_local = "0x" + KEY
    try:
        raise ValueError(f"bad key {secret_local}")
    except ValueError:
        log.exception("failed")
    written = stream.getvalue() + file.read_text()
    assert KEY not in written
    assert "hunter2" not in written
    assert "ValueError" in written
    assert signer.address in written


def test_numbers_and_counts_of_tokens_stay_readable():
    entry = {
        "tokens_in": 3,
        "token": "usd",
        "seed": 7,
        "tx": "0x" + "ab" * 32,
        "ok": True,
        "n": None,
    }
    assert redact(entry) == {**entry, "tx": "0xabab…abab"}


@given(
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.text(max_size=20),
    st.text(max_size=20),
)
def test_64_digits_never_survive_in_a_text(digits, before, after):
    hexadecimal = set("0123456789abcdefABCDEF")
    text = f"{before.rstrip(''.join(hexadecimal))} {digits} {after}"
    assert digits not in redact_text(text)


@pytest.mark.parametrize(
    ("text", "gone", "kept"),
    [
        ("postgresql://m:hunter2@db/x", "hunter2", "@db/x"),
        ("https://rpc.example/v3/0123456789abcdef0123456789abcdef", "89abcdef", "rpc.example"),
        ("wss://a/b?apiKey=hunter2&x=1", "hunter2", "x=1"),
    ],
)
def test_urls_lose_their_passwords_and_tokens(text, gone, kept):
    assert gone not in redact_text(text)
    assert kept in redact_text(text)


def test_names_of_files_are_not_secrets():
    assert redact({"password_file": "/x", "password": "y"}) == {
        "password_file": "/x",
        "password": HIDDEN,
    }
