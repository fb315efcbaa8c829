"""Where may a password come from, and is a key on the command line always refused?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.keys.passwords import read_password, read_secret_file, refuse_raw_keys
from core.protocol.errors import (
    KeyOnCommandLine,
    PasswordMissing,
    SecretFileTooOpen,
    WalletError,
)

PHRASE = "test test test test test test test test test test test junk"


def secret_file(path, text="pw\n", mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_file_comes_before_the_question(tmp_path):
    named = secret_file(tmp_path / "a", "from file\r\n")
    assert read_password("alice", file=named, prompt=str.upper) == "from file"
    assert "ALICE" in read_password("alice", prompt=str.upper)


def test_without_file_and_terminal_the_error_names_the_option():
    with pytest.raises(PasswordMissing) as caught:
        read_password("alice")
    assert "--password-file" in caught.value.next_step


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_password_file_that_others_may_read_or_write_is_refused_with_the_fix(tmp_path, mode):
    path = secret_file(tmp_path / "pw", mode=mode)
    with pytest.raises(SecretFileTooOpen) as caught:
        read_secret_file(path)
    assert caught.value.next_step == f"chmod 600 {path}"


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_read(tmp_path, mode):
    assert read_password("alice", file=secret_file(tmp_path / "pw", mode=mode)) == "pw"


def test_a_missing_or_binary_password_file_is_a_wallet_error(tmp_path):
    with pytest.raises(WalletError, match="cannot read"):
        read_secret_file(tmp_path / "none")
    (tmp_path / "raw").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "raw").chmod(0o600)
    with pytest.raises(WalletError, match="cannot read"):
        read_secret_file(tmp_path / "raw")


HEX = st.text("0123456789abcdefABCDEF", min_size=64, max_size=64)


@given(
    HEX, st.sampled_from(["{}", "0x{}", "--key={}", "--key=0x{}", "use {} now", "{},x", "key:{}."])
)
def test_a_raw_key_anywhere_is_refused_without_repeating_it(digits, form):
    with pytest.raises(KeyOnCommandLine) as caught:
        refuse_raw_keys(["client", "chat", form.format(digits)])
    assert digits not in str(caught.value.to_dict())
    assert "new key" in caught.value.next_step


@pytest.mark.parametrize("phrase", [PHRASE, f"  {PHRASE}  "])
def test_a_recovery_phrase_is_refused(phrase):
    with pytest.raises(KeyOnCommandLine, match="refused"):
        refuse_raw_keys([phrase])


@pytest.mark.parametrize(
    "argument",
    [
        "job_7QK3W0A8",
        "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
        "ab" * 31,
        "ab" * 33,
        "0x" + "ab" * 65,
        f"/cache/blobs/{'ab' * 32}",
        f"{'ab' * 32}.json",
        "tell me a short story about the sea and a small old boat",
        "--json",
        "",
    ],
)
def test_ids_addresses_paths_and_sentences_pass(argument):
    refuse_raw_keys([argument])
