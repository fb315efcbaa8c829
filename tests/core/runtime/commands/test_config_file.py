"""Does `config set` change one value, keep the comments, and never leave a broken file?"""

import pytest

from core.protocol.errors import ConfigError, ConfigKeyUnknown
from core.runtime.commands.config_file import set_value
from core.runtime.folders import Folders
from core.runtime.settings import load

START = """\
# my machine
network = "devnet"

[miner]  # the laptop
name = "laptop"   # as the cat calls it
"""


@pytest.fixture
def folders(tmp_path) -> Folders:
    folders = Folders.at(tmp_path)
    folders.config.mkdir()
    folders.config_file.write_text(START)
    return folders


def value(folders, key):
    return {key: shown for key, shown, _ in load(folders=folders, environ={}).effective()}[key]


@pytest.mark.parametrize(
    ("key", "text", "shown"),
    [
        ("miner.price_out", "0.5usd/Mtok", "0.5usd/Mtok"),
        ("miner.name", "desk", "desk"),
        ("miner.listen_port", "7001", 7001),
        ("miner.metrics_port", "9100", 9100),
        ("miner.memory_limit", "6GiB", "6GiB"),
        ("miner.layers", "0:10", "0:10"),
        ("miner.peers", "a,b", ["a", "b"]),
        ("miner.allow_matchers", "0x" + "11" * 20, ["0x" + "11" * 20]),
        ("gateway.dashboard", "false", False),
        ("network.rpc_url", "http://x", "http://x"),
        ("network.chain_id", "5", 5),
        ("wallet", "alice", "alice"),
        ("network.contracts.Escrow", "0x" + "11" * 20, "0x" + "11" * 20),
    ],
)
def test_a_value_is_set_with_its_type_and_comments_stay(folders, key, text, shown):
    full_key, _ = set_value(key, text, folders)
    assert value(folders, full_key) == shown
    content = folders.config_file.read_text()
    assert "# my machine" in content
    assert "# the laptop" in content
    assert value(folders, "network.name") == "devnet"


def test_the_short_form_is_changed_in_place(folders):
    set_value("network.name", "sepolia", folders)
    assert 'network = "sepolia"' in folders.config_file.read_text()


def test_a_first_value_makes_the_file(tmp_path):
    folders = Folders.at(tmp_path / "new")
    set_value("miner.name", "desk", folders)
    assert value(folders, "miner.name") == "desk"
    assert [path.name for path in folders.config.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    ("key", "text", "error"),
    [
        ("miner.prise_in", "1usd/Mtok", ConfigKeyUnknown),
        ("miner", "x", ConfigKeyUnknown),
        ("miner.price_in", "1", ConfigError),
        ("miner.listen_port", "many", ConfigError),
        ("gateway.dashboard", "perhaps", ConfigError),
        ("log.level", "loud", ConfigError),
    ],
)
def test_a_refused_value_leaves_the_file_as_it_was(folders, key, text, error):
    with pytest.raises(error):
        set_value(key, text, folders)
    assert folders.config_file.read_text() == START
    assert [path.name for path in folders.config.iterdir()] == ["config.toml"]
