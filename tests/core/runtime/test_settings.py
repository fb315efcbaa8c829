"""Does every layer override the one below it, and does each value know who set it?"""

import json

import pytest

from core.protocol.errors import AmountUnitMissing, ConfigError, ConfigKeyUnknown
from core.runtime.folders import Folders
from core.runtime.settings import (
    NetworkSettings,
    find_network_file,
    known_keys,
    load,
)

A, B = "0x" + "11" * 20, "0x" + "22" * 20


@pytest.fixture
def folders(tmp_path) -> Folders:
    return Folders.at(tmp_path / "home")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_each_layer_wins_over_the_one_below(folders, tmp_path):
    layers = {}

    def now():
        settings = load(folders=folders, environ={}, **layers)
        return settings.network.rpc_url, settings.origin("network.rpc_url")

    assert now() == (None, "default")
    network = write(folders.networks / "devnet.json", '{"rpc_url": "network"}')
    assert now() == ("network", f"network file {network}")
    user = write(folders.config_file, '[network]\nrpc_url = "user"')
    assert now() == ("user", f"file {user}")
    layers["config_file"] = write(tmp_path / "own.toml", '[network]\nrpc_url = "own"')
    assert now() == ("own", f"file {tmp_path / 'own.toml'}")
    settings = load(folders=folders, environ={"HEADRACE_NETWORK__RPC_URL": "environment"}, **layers)
    assert settings.network.rpc_url == "environment"
    assert settings.origin("network.rpc_url") == "environment HEADRACE_NETWORK__RPC_URL"
    settings = load(
        folders=folders,
        environ={"HEADRACE_NETWORK__RPC_URL": "environment"},
        flags={"network.rpc_url": "flag", "wallet.name": None},
        **layers,
    )
    assert (settings.network.rpc_url, settings.origin("network.rpc_url")) == ("flag", "flag")
    assert settings.origin("wallet.name") == "default"


def test_headrace_config_names_the_file_and_the_option_wins(folders, tmp_path):
    by_variable = write(tmp_path / "v.toml", 'wallet = "variable"')
    by_option = write(tmp_path / "o.toml", 'wallet = "option"')
    environ = {"HEADRACE_CONFIG": str(by_variable)}
    assert load(folders=folders, environ=environ).wallet.name == "variable"
    assert load(folders=folders, environ=environ, config_file=by_option).wallet.name == "option"


def test_foundrys_variables_count_when_ours_are_not_set(folders, tmp_path):
    (tmp_path / "ks").mkdir()
    foundry = {
        "ETH_RPC_URL": "http://foundry",
        "ETH_KEYSTORE": str(tmp_path / "ks"),
        "ETH_KEYSTORE_ACCOUNT": "bob",
        "ETH_PASSWORD": "/pw",
    }
    settings = load(folders=folders, environ=foundry)
    assert settings.network.rpc_url == "http://foundry"
    assert settings.wallet.keystore_dir == tmp_path / "ks"
    assert settings.wallet.name == "bob"
    assert str(settings.wallet.password_file) == "/pw"
    assert settings.origin("wallet.name") == "environment ETH_KEYSTORE_ACCOUNT"
    ours = {"HEADRACE_RPC_URL": "http://ours", "HEADRACE_WALLET": "alice"}
    ours["HEADRACE_PASSWORD_FILE"] = "/ours"
    settings = load(folders=folders, environ=foundry | ours)
    assert (settings.network.rpc_url, settings.wallet.name) == ("http://ours", "alice")
    assert str(settings.wallet.password_file) == "/ours"


def test_eth_keystore_may_name_one_file(folders, tmp_path):
    file = write(tmp_path / "ks" / "carol", "{}")
    settings = load(folders=folders, environ={"ETH_KEYSTORE": str(file)})
    assert (settings.wallet.keystore_dir, settings.wallet.name) == (tmp_path / "ks", "carol")


def test_empty_variables_count_as_absent(folders):
    assert load(folders=folders, environ={"HEADRACE_WALLET": ""}).wallet.name == ""


def test_short_forms_mean_the_main_key_of_their_section(folders):
    write(folders.config_file, 'network = "sepolia"\nwallet = "alice"\nlog = "json"')
    settings = load(folders=folders, environ={})
    assert (settings.network.name, settings.wallet.name, settings.log.format) == (
        "sepolia",
        "alice",
        "json",
    )


@pytest.mark.parametrize("name", ["net.json", "net.toml"])
def test_a_network_file_may_be_json_or_toml_and_named_by_path(folders, tmp_path, name):
    text = (
        json.dumps({"chain_id": 5, "contracts": {"Escrow": A}})
        if name.endswith("json")
        else f'chain_id = 5\n[contracts]\nEscrow = "{A}"'
    )
    path = write(tmp_path / name, text)
    settings = load(folders=folders, environ={}, flags={"network.name": str(path)})
    assert settings.network.chain_id == 5
    assert settings.network.name == "net"
    assert settings.network.contract("escrow") == A
    assert settings.origin("network.contracts.Escrow") == f"network file {path}"


def test_a_named_network_file_that_does_not_exist_is_an_error(folders):
    with pytest.raises(ConfigError, match="no network file"):
        load(folders=folders, environ={}, flags={"network.name": "/none.json"})


def test_a_network_file_is_read_whole(folders):
    network = NetworkSettings(
        name="devnet",
        chain_id=31337,
        rpc_url="http://127.0.0.1:8545",
        contracts={"TaskRegistry": A, "Escrow": B},
        bootstrap_peers=("/ip4/127.0.0.1/tcp/1",),
        matcher_url="http://127.0.0.1:7100",
        deploy_block=3,
    )
    written = json.dumps(network.model_dump(mode="json", exclude_none=True))
    folders.networks.mkdir(parents=True)
    (folders.networks / "devnet.json").write_text(written)
    settings = load(folders=folders, environ={})
    assert settings.network == network
    assert settings.require_network() == (31337, "http://127.0.0.1:8545")
    assert settings.require_matcher_url() == "http://127.0.0.1:7100"
    assert find_network_file("devnet", folders) == folders.networks / "devnet.json"


def test_matchers_are_in_order_each_once_with_the_address_that_is_known(folders):
    places = f"https://two.example/market/, {A}@http://127.0.0.1:7100"
    flags = {"network.matcher_url": "http://127.0.0.1:7100", "network.matchers": places}
    settings = load(folders=folders, environ={}, flags=flags)
    found = [("http://127.0.0.1:7100", A), ("https://two.example/market", None)]
    assert settings.require_matchers() == found
    assert settings.require_matcher_url() == "http://127.0.0.1:7100"
    del flags["network.matcher_url"]
    alone = load(folders=folders, environ={}, flags=flags)
    assert alone.require_matcher_url() == "https://two.example/market"


@pytest.mark.parametrize(
    "place", ["two.example", "0x12@https://two.example", "ftp://two.example", "me@http://a.example"]
)
def test_what_is_no_matchers_place_is_refused(folders, place):
    with pytest.raises(ConfigError):
        load(folders=folders, environ={}, flags={"network.matchers": place})


def test_an_unknown_network_says_what_is_missing_and_how_to_start_one(folders):
    settings = load(folders=folders, environ={})
    with pytest.raises(ConfigError) as caught:
        settings.require_network()
    assert "network.chain_id" in caught.value.why
    assert "devnet up" in caught.value.next_step
    with pytest.raises(ConfigError, match="TaskRegistry"):
        settings.network.contract("TaskRegistry")
    with pytest.raises(ConfigError, match="no matcher"):
        settings.require_matcher_url()


@pytest.mark.parametrize(
    ("environ", "text", "suggestion"),
    [
        ({"HEADRACE_MINER__PRICE_OT": "1"}, "", "miner.price_out"),
        ({}, "[minr]\nname = 'x'", "miner.name"),
        ({}, "[miner]\npassword_fil = 'x'", "miner.password_file"),
        ({}, "rpc_url = 'x'", "network.rpc_url"),
    ],
)
def test_unknown_keys_are_errors_with_a_suggestion_and_their_origin(
    folders, environ, text, suggestion
):
    write(folders.config_file, text)
    with pytest.raises(ConfigKeyUnknown) as caught:
        load(folders=folders, environ=environ)
    assert suggestion in caught.value.next_step
    assert (str(folders.config_file) if text else "HEADRACE_MINER__PRICE_OT") in caught.value.why


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("miner.price_in", "0.4"),
        ("miner.price_out", 0.4),
        ("miner.memory_limit", 6),
        ("miner.drain_timeout", "30"),
        ("client.max_cost_per_job", "5"),
        ("client.max_cost_per_job", "5eth"),
        ("miner.layers", "9:3"),
        ("miner.layers", "some"),
        ("miner.region", "EU West"),
        ("miner.region", "x" * 41),
        ("miner.allow_matchers", "0x12"),
        ("miner.listen_port", 70_000),
        ("client.verify", "sample=2"),
        ("log.level", "loud"),
        ("network.contracts.Escrow", "0x12"),
        ("network.chain_id", "one"),
        ("gateway.dashboard", "perhaps"),
    ],
)
def test_a_bad_value_names_its_key_its_value_and_its_origin(folders, key, value):
    with pytest.raises(ConfigError) as caught:
        load(folders=folders, environ={}, flags={key: value})
    assert caught.value.what.startswith(key)
    assert "flag" in caught.value.why
    assert str(value) in caught.value.why


def test_amounts_become_integers(folders):
    settings = load(
        folders=folders,
        environ={
            "HEADRACE_MINER__MEMORY_LIMIT": "6GiB",
            "HEADRACE_MINER__DRAIN_TIMEOUT": "2m",
            "HEADRACE_MINER__LAYERS": "0:10",
            "HEADRACE_MINER__PEERS": "a, b,",
            "HEADRACE_MINER__LISTEN_PORT": "7001",
        },
    )
    assert settings.miner.memory_limit_bytes == 6 * 2**30
    assert settings.miner.drain_timeout_s == 120
    assert settings.miner.layers == (0, 10)
    assert settings.miner.peers == ("a", "b")
    assert settings.miner.listen_port == 7001
    assert settings.price(settings.miner.price_in) == 100_000
    assert settings.token(settings.client.max_cost_per_job) == 5_000_000


def test_the_networks_token_decides_symbol_and_decimals(folders):
    flags = {"network.token_symbol": "dai", "network.token_decimals": 18}
    settings = load(folders=folders, environ={}, flags=flags)
    assert settings.token("5dai") == 5 * 10**18
    assert settings.show_token(5 * 10**18) == "5dai"
    assert settings.show_price(settings.price("0.25dai/Mtok")) == "0.25dai/Mtok"
    with pytest.raises(AmountUnitMissing):
        settings.token("5")


def test_settings_are_frozen(folders):
    settings = load(folders=folders, environ={})
    with pytest.raises(Exception, match="frozen"):
        settings.miner.name = "x"


def test_paths_in_a_file_are_relative_to_that_file(folders, tmp_path):
    write(tmp_path / "c" / "own.toml", '[wallet]\npassword_file = "pw"\nkeystore_dir = "/k"')
    settings = load(folders=folders, environ={}, config_file=tmp_path / "c" / "own.toml")
    assert settings.wallet.password_file == tmp_path / "c" / "pw"
    assert str(settings.wallet.keystore_dir) == "/k"


@pytest.mark.parametrize("text", ["x = ", "[a", "x = 1\nx = 2"])
def test_a_broken_file_is_named(folders, text):
    write(folders.config_file, text)
    with pytest.raises(ConfigError, match="not valid"):
        load(folders=folders, environ={})


def test_effective_shows_every_key_once_and_masks_secrets(folders):
    settings = load(
        folders=folders,
        environ={
            "HEADRACE_RPC_URL": "https://user:hunter2@rpc.example/v3/" + "0123456789abcdef" * 2,
            "HEADRACE_MATCHER__DB_URL": "postgresql://m:hunter2@db/headrace",
        },
    )
    rows = list(settings.effective())
    assert [key for key, _, _ in rows] == sorted(
        {*known_keys()} - {"network.contracts", "network.models"}
    )
    text = repr(rows)
    assert "hunter2" not in text
    assert "0123456789abcdef" not in text
    assert "db/headrace" in text


def test_headrace_home_holds_all_folders(tmp_path):
    folders = Folders.find({"HEADRACE_HOME": str(tmp_path)})
    for folder in (folders.config, folders.state, folders.cache, folders.networks):
        assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_without_home_the_platforms_folders_are_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    folders = Folders.find({})
    assert folders.state == tmp_path / "s" / "headrace"
    assert folders.networks == tmp_path / "c" / "headrace" / "networks"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("net.json", "[" * 100_000),
        ("net.json", '{"a":' * 10_000 + "1" + "}" * 10_000),
        ("net.json", '{"chain_id": ' + "9" * 5_000 + "}"),
        ("net.json", " " * 2**21),
        ("net.json", "[1]"),
        ("net.json", '{"models": "none"}'),
        ("net.json", '{"models": {"a": {"b": 1}}}'),
        ("net.json", '{"models.a": "x", "models": {"a": {"b": 1}}}'),
        ("net.json", '{"contracts": [1], "contracts.a": "x"}'),
        ("net.json", '{"rpc_url": {"rpc_url": 1}}'),
        ("net.toml", "a = " + "[" * 100_000),
        ("net.toml", ".".join("a" * 5_000) + " = 1"),
        ("net.toml", "a = '''" + "[" * 1_000),
    ],
)
def test_a_hostile_network_file_is_a_configuration_error(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises((ConfigError, ConfigKeyUnknown)):
        load(flags={"network.name": str(file)}, environ={"HEADRACE_HOME": str(tmp_path)})


def test_many_unknown_settings_are_told_as_one_and_none_at_length(tmp_path):
    file = tmp_path / "net.json"
    for content in ({f"x{i}": 1 for i in range(60_000)}, {"x" * 900_000: 1}):
        file.write_text(json.dumps(content))
        with pytest.raises(ConfigKeyUnknown) as caught:
            load(flags={"network.name": str(file)}, environ={"HEADRACE_HOME": str(tmp_path)})
        assert len("".join(caught.value.lines())) < 2_000
