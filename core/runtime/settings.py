"""What is configured, and who said so?

One precedence, lowest first::

    built-in defaults → network file → config.toml in the user's folder → --config file
    → environment → flags

The network file (``networks/NAME.json`` or ``.toml``) holds the keys of ``[network]`` at its top
level, or is one that an owner signed (`core/protocol/network_file.py`). In the environment a key is
``HEADRACE_`` and the key in capitals, with a double underscore for each dot
(``HEADRACE_MINER__PRICE_OUT``); Foundry's ``ETH_RPC_URL``, ``ETH_KEYSTORE``,
``ETH_KEYSTORE_ACCOUNT`` and ``ETH_PASSWORD`` count there when ours are not set. ``network =
"devnet"``, ``wallet = "alice"`` and ``log = "json"`` are short for ``network.name``,
``wallet.name`` and ``log.format``.

Amounts are texts with a unit and become integers here: tokens in base units, prices in base units
per Mtok, times in seconds, sizes in bytes. ``Settings`` is frozen, made once in ``main``.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from core.keys.keystore import DEFAULT_FOLDER
from core.protocol import units
from core.protocol.errors import ConfigError, ConfigKeyUnknown, HeadraceError
from core.protocol.foreign import MAX_DEPTH, MOST_NAME_CHARACTERS, read_file, read_json
from core.protocol.ids import Address, address
from core.runtime.folders import Folders
from core.runtime.redact import redact

PREFIX: Final = "HEADRACE_"
#: Variables with our prefix that are short for a key.
SHORT_VARIABLES: Final = {
    "HEADRACE_PASSWORD_FILE": "wallet.password_file",
    "HEADRACE_RPC_URL": "network.rpc_url",
    "HEADRACE_NETWORK": "network.name",
    "HEADRACE_WALLET": "wallet.name",
    "HEADRACE_LOG": "log.format",
}
#: Variables with our prefix that choose where settings come from.
NOT_SETTINGS: Final = frozenset({"HEADRACE_HOME", "HEADRACE_CONFIG", "HEADRACE_CC"})
#: A section given as one text means this key of it.
SHORT_SECTIONS: Final = {"network": "name", "wallet": "name", "log": "format"}
MAX_FILE_BYTES: Final = 2**20
PATH_KEYS: Final = frozenset(
    {"wallet.keystore_dir", "wallet.password_file", "miner.password_file", "alerts.secret_file"}
)

#: Of `client.auditor`, instead of an address: the auditor that the matcher pays.
THE_MATCHERS: Final = "matcher"


# --- value types: text with a unit in, integer out ---------------------------------------------


def _reader(parse: Any) -> BeforeValidator:
    def read(value: object) -> object:
        if value is None:
            return None
        try:
            return parse(str(value))
        except HeadraceError as error:
            raise ValueError(f"{error.what}; {error.why}; {error.next_step}") from error

    return BeforeValidator(read)


def _as_list(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _as_path(value: object) -> object:
    return Path(str(value)).expanduser() if value else None


def _layers(value: object) -> object:
    text = str(value)
    match = re.fullmatch(r"(\d+)[:-](\d+)", text)
    if text == "auto":
        return None
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError(f"'{text}' is neither auto nor A:B with A < B (layer B is not included)")
    return int(match[1]), int(match[2])


def _sampling_of_checks(value: object) -> object:
    text = str(value)
    if text in ("none", "full"):
        return text
    match = re.fullmatch(r"sample=(0(?:\.\d+)?|1(?:\.0+)?)", text)
    if match is None:
        raise ValueError(f"'{text}' is none of: none, full, sample=0.05 (a share from 0 to 1)")
    return text


def _address(value: object) -> object:
    try:
        return address(str(value))
    except HeadraceError as error:
        raise ValueError(f"{error.what}; {error.why}") from error


def _aliases(value: object) -> object:
    """`fast=smollm2-135m,gemma3-270m; small=gemma3-270m` as names and the models they stand for."""
    if not isinstance(value, str):
        return value
    found = dict[str, tuple[str, ...]]()
    for part in filter(None, map(str.strip, value.split(";"))):
        name, _, listed = part.partition("=")
        models = tuple(model.strip() for model in listed.split(",") if model.strip())
        if not name.strip() or not models or name.strip() in found:
            raise ValueError(f"'{part}' is not such as fast=smollm2-135m,gemma3-270m, each once")
        found[name.strip()] = models
    return found


def _auditor(value: object) -> object:
    if value in ("", "none"):
        return ""
    return value if value == THE_MATCHERS else _address(value)


def _matcher_places(value: object) -> object:
    """`https://one.example, 0x12…@https://two.example` as URLs, those with an address before it."""
    places = _as_list(value)
    for place in places if isinstance(places, list | tuple) else ():
        url, named = _split_place(str(place))
        if named is not None:
            _address(named)
        if re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", url) is None:
            raise ValueError(f"'{place}' is neither a URL nor ADDRESS@URL")
    return places


def _split_place(place: str) -> tuple[str, str | None]:
    named, at, url = place.partition("@")
    return (url, named) if at else (place, None)


def _public_url(value: object) -> object:
    text = str(value).removesuffix("/")
    if text and re.fullmatch(r"https?://[^\s/?#@]+", text) is None:
        raise ValueError(
            f"'{text}' is not an address such as https://llm.example.org, with no path"
        )
    return text


Seconds = Annotated[int, _reader(units.parse_duration)]
SizeBytes = Annotated[int, _reader(units.parse_bytes)]
TokenText = Annotated[str, BeforeValidator(str)]
Words = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
OptionalPath = Annotated[Path | None, BeforeValidator(_as_path)]
AnAddress = Annotated[Address, BeforeValidator(_address)]
Addresses = Annotated[tuple[AnAddress, ...], BeforeValidator(_as_list)]
Port = Annotated[int, Field(ge=0, le=65535)]
Aliases = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_aliases)]
MatcherPlaces = Annotated[tuple[str, ...], BeforeValidator(_matcher_places)]
PublicUrl = Annotated[str, BeforeValidator(_public_url)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class NetworkSettings(_Section):
    """Which chain, which contracts, where to find the others."""

    name: str = "devnet"
    """Which network file is read: a name in the networks folder, or a path."""
    chain_id: int | None = None
    """The chain that orders and signatures are for."""
    rpc_url: str | None = None
    """The chain's RPC endpoint, or several of different operators with commas between them: what
    most of them say counts, so of three one may lie, lag or be away."""
    contracts: dict[str, AnAddress] = {}
    """Contract name as in Solidity → address."""
    models: dict[str, str] = {}
    """Names that people type → model ids (0x hex); the chain knows only ids."""
    bootstrap_peers: Words = ()
    """Multiaddresses of the swarm to join through."""
    matcher_url: str | None = None
    """The matcher that orders are sent to."""
    matchers: MatcherPlaces = ()
    """Those that orders go to where it fails or has no room: URLs, or ADDRESS@URL."""
    matcher: AnAddress | None = None
    """The matcher that miners without `miner.allow_matchers` let choose their layers; else any."""
    token_symbol: str = units.TOKEN_SYMBOL
    """The unit in which amounts of money are written."""
    token_decimals: Annotated[int, Field(ge=0, le=36)] = units.TOKEN_DECIMALS
    """Digits of one unit after the point."""
    private_addresses: bool | None = None
    """Whether machines may be dialled at private, loopback and link-local addresses; unset: only on
    a development chain."""
    deploy_block: Annotated[int, Field(ge=0)] = 0
    """The block from which events are read."""
    reorg_window_blocks: Annotated[int, Field(ge=0)] = 12
    """How many blocks back are read again, in case the chain changed its mind."""

    @property
    def matcher_places(self) -> list[tuple[str, str | None]]:
        """Every matcher once, the preferred one first: its URL, and its address where given."""
        places = [*filter(None, [self.matcher_url]), *self.matchers]
        found = dict[str, str | None]()
        for url, named in map(_split_place, places):
            found[url.rstrip("/")] = found.get(url.rstrip("/")) or named
        return list(found.items())

    def contract(self, name: str) -> Address:
        """The address of ``TaskRegistry``, ``Escrow`` and so on. Raises ConfigError."""
        wanted = _plain(name)
        for known, where in self.contracts.items():
            if _plain(known) == wanted:
                return where
        raise ConfigError(
            f"network '{self.name}' has no address of {name}",
            why=f"known contracts: {', '.join(sorted(self.contracts)) or 'none'}",
            next_step="deploy them (`devnet up`), or choose another --network",
        )


class WalletSettings(_Section):
    """Which key pays, and where keys lie."""

    name: str = ""
    """Name or address of the wallet that signs and pays."""
    keystore_dir: Annotated[Path, BeforeValidator(_as_path)] = DEFAULT_FOLDER.expanduser()
    """Where keystore files lie; the same folder as Foundry uses."""
    password_file: OptionalPath = None
    """A file with the wallet's password, which you alone may read, for programs that cannot ask."""


class MinerSettings(_Section):
    """One machine that serves layers."""

    name: str = ""
    """What this machine calls itself to people."""
    operator: str = ""
    """Name of the wallet whose key signs work."""
    password_file: OptionalPath = None
    """Of the operator's wallet; the owner's is wallet.password_file."""
    model: str = "smollm2-135m"
    """The model to serve, by its name in the network file."""
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{0,40}$")] = ""
    """Where this machine is, for planners that go by regions: a short name such as eu-west, of
    lower-case letters, digits and hyphens; empty: matchers guess it from measured latencies."""
    price_in: TokenText = "0.10usd/Mtok"
    """What it asks for the tokens of prompts, of the whole model."""
    price_out: TokenText = "0.40usd/Mtok"
    """What it asks for the tokens of answers, of the whole model."""
    memory_limit_bytes: Annotated[SizeBytes | None, Field(alias="memory_limit")] = None
    """For weights and cache; unset: what the machine has."""
    listen_host: str = ""
    """Where the data port listens; empty: at the address from which the network is reached."""
    listen_port: Port = 0
    """The data port; 0: any that is free."""
    announce_host: str = ""
    """What peers dial, if it is not listen_host."""
    announce_port: Port = 0
    """The port that peers dial, if a router or a relay forwards another one; 0: the one that it
    listens on."""
    reach: Literal["auto", "direct", "relay"] = "auto"
    """How peers reach the data port: they dial it, or where none can (a router that forwards
    nothing) they use a relay of the swarm. Where there is an announce_host too, they dial it
    first. auto: a relay where no host is set and the address found is private, and the network's
    are public."""
    relay: bool = False
    """Be a relay, unpaid, for machines that no peer can dial; peers must be able to dial it."""
    layers: Annotated[tuple[int, int] | None, BeforeValidator(_layers)] = None
    """[A, B), or None for auto: the matcher says."""
    announce_interval_s: Annotated[Seconds, Field(alias="announce_interval", ge=1)] = 1
    """How often it tells the swarm what it can do now."""
    drain_timeout_s: Annotated[Seconds, Field(alias="drain_timeout")] = 60
    """How long accepted work may take when stopping."""
    alone_after_s: Annotated[Seconds, Field(alias="alone_after")] = 120
    """After so long without a word of a matcher, machines share the layers among themselves."""
    allow_matchers: Addresses = ()
    """Matchers whose work is taken, and that choose the layers; empty: any, and the network's."""
    peers: Words = ()
    """Static peers beside discovery."""
    max_batch: Annotated[int, Field(ge=1)] = 16
    """How many requests run at once."""
    max_context: Annotated[int | None, Field(ge=1)] = None
    """Tokens of the longest request that it takes, answer included; unset: as many as the model and
    its memory allow."""
    metrics_port: Port | None = None
    """Port of `/status` and `/metrics` on this machine; unset: any that is free."""
    metrics_host: str = ""
    """Where `/metrics` alone is answered to other machines at that port; empty: it is answered on
    this one, beside `/status`."""
    max_unpaid: TokenText = "0.001usd"
    """Most that a job may owe all its machines while they work for it."""
    share_rate_bytes_s: Annotated[SizeBytes, Field(alias="share_rate", ge=0)] = 4 * 2**20
    """How much of the model's files it sends to others in a second at most: an eighth to strangers,
    the rest to who has stake or a part in its jobs. 0: none."""


class Client(_Section):
    """What a requester wants unless a command says otherwise."""

    model: str = "smollm2-135m"
    """The model that is asked where a command names none."""
    max_cost_per_job: TokenText = "5usd"
    """No order locks more than this."""
    max_opening_fee: TokenText = "0.05usd"
    """No order pays its matcher more than this for being opened."""
    price_cap_in: TokenText | None = None
    """The highest price for the tokens of prompts; unset: any."""
    price_cap_out: TokenText | None = None
    """The highest price for the tokens of answers; unset: any."""
    verify: Annotated[str, BeforeValidator(_sampling_of_checks)] = "none"
    """What share of requests an order says will be audited; part of its signed terms."""
    replicas: Annotated[int, Field(ge=1, le=8)] = 1
    """How often `client submit` buys the same work, on other machines each, to compare answers."""
    deadline_s: Annotated[Seconds, Field(alias="deadline", ge=1)] = 3600
    """How long a job may take."""
    window_s: Annotated[Seconds, Field(alias="window", ge=1)] = 86400
    """How long after delivery a dispute may be opened."""
    trusted: Words = ()
    """Only these operators may serve; empty: any."""
    avoid: Words = ()
    """These operators may not serve."""
    auditor: Annotated[str, BeforeValidator(_auditor)] = ""
    """An address that may audit and dispute your jobs, and sees their prompts; `matcher`: the one
    that the matcher pays; empty or `none`: nobody."""
    arbitrator: str = ""
    """What settles disputes: game, jury or an address; empty: the game where the model has an
    operator program, else the jury."""
    account: AnAddress | None = None
    """Whose prepaid balance is spent, if the wallet is only a spender that it allows."""


class SessionSettings(_Section):
    """Open orders that a requester keeps for single requests. Each locks its tokens' price."""

    requests: Annotated[int, Field(ge=1, le=4096)] = 256
    """How many requests one session takes."""
    tokens_in: Annotated[int, Field(ge=1, le=2**31)] = 131_072
    """How many tokens of prompts one session takes."""
    tokens_out: Annotated[int, Field(ge=1, le=2**31)] = 65_536
    """How many tokens of answers one session takes."""
    length_s: Annotated[Seconds, Field(alias="length", ge=30)] = 1200
    """How long a session may last."""
    idle_s: Annotated[Seconds, Field(alias="idle", ge=1)] = 120
    """A session without a request for this long is closed."""
    in_flight: Annotated[int, Field(ge=1, le=8)] = 4
    """How many requests of one session run at once."""
    pipelines: Annotated[int, Field(ge=1, le=64)] = 8
    """How many sessions of one model are open at once at most."""
    queue_s: Annotated[Seconds, Field(alias="queue", ge=0)] = 30
    """How long a request waits where every session is full and no other can be opened."""


class Matcher(_Section):
    """The off-chain matching daemon."""

    listen_host: str = "127.0.0.1"
    """Where the API listens."""
    listen_port: Port = 7100
    """Port of the API; 0: any that is free."""
    db_url: str = ""
    """Empty: SQLite in the state folder."""
    peers: Words = ()
    """Swarm peers to join through, beside network.bootstrap_peers."""
    swarm_host: str = ""
    """Where its peer of the swarm listens; empty: where the API does."""
    swarm_port: Port = 0
    """Port of its peer of the swarm; 0: any that is free."""
    relay: bool = False
    """Be a relay, unpaid and open to strangers, for machines that no peer can dial."""
    placement: Literal["auto", "simulated", "parallax", "helix", "memory"] = "auto"
    """How layers are given to machines when all are placed anew: auto is the utility plan,
    simulated that or Parallax's, whichever serves more in simulation, parallax Parallax's pipelines
    inside regions, helix Helix's program over links, with slices that overlap, memory
    HyperCluster's shares of memory. Where one of them finds no plan, the utility plan is taken."""
    routing: Literal["fastest", "iwrr"] = "fastest"
    """Which chain an order gets: the fastest with room, counting what is promised, or the next by
    Helix's interleaved weighted round robin over a maximum flow, where no machine is promised more
    than 85 % of its KV cache."""
    min_machines: Annotated[int, Field(ge=1)] = 1
    """Plan a model for the first time when this many machines are there."""
    settle_s: Annotated[Seconds, Field(alias="settle", ge=1)] = 2
    """Plan when the set of machines has not changed for this long."""
    ack_grace_s: Annotated[Seconds, Field(alias="ack_grace", ge=1)] = 20
    """Deliver finished work that its requester has not acknowledged for this long."""
    queue_s: Annotated[Seconds, Field(alias="queue", ge=0)] = 30
    """An order that finds every machine taken waits for this long before it is refused."""
    registered_orders: bool = True
    """Match orders that name it and that their requesters have registered on chain themselves."""
    replan_interval_s: Annotated[Seconds, Field(alias="replan_interval", ge=1)] = 10
    """How often it looks whether layers should move."""
    fee_bps: Annotated[int, Field(ge=0, le=10_000)] = 0
    """What it asks of each job, in hundredths of a percent."""
    opening_fee: TokenText = "0.005usd"
    """What it asks for opening a job, whatever comes of it: the gas of opening one and of ending it
    unpaid, at least."""
    auditors: Addresses = ()
    """Auditors whose reports count: an owner whose machine they found at fault gets no work."""
    audit_memory_s: Annotated[Seconds, Field(alias="audit_memory", ge=1)] = 30 * 86_400
    """How long what such an auditor found counts."""
    paid_auditors: Addresses = ()
    """Auditors that it pays for looking at random requests of orders that name them; empty: none,
    and it offers no audits."""
    audit_rate_bps: Annotated[int, Field(ge=1, le=10_000)] = 300
    """What share of such an order's requests it draws, in hundredths of a percent."""
    audit_fee: TokenText = "0.01usd"
    """What it owes for each drawn request, whatever is found: at least 1.5 times what the audit
    costs the auditor."""
    audit_cap: TokenText = "1usd"
    """It draws no more than this pays for in any 24 hours."""
    audit_within_s: Annotated[Seconds, Field(alias="audit_within", ge=60)] = 6 * 3600
    """How long after the draw a finding may come; nothing is owed for a later one."""
    metrics_port: Port | None = None
    """Metrics on a port of their own; unset: on the port of the API."""


class GatewaySettings(_Section):
    """The OpenAI-compatible front door of `client serve`."""

    host: str = "127.0.0.1"
    """Where it listens; other than loopback only behind TLS."""
    port: Port = 8080
    """0: any that is free."""
    db_url: str = ""
    """Empty: SQLite in the state folder."""
    daily_budget: TokenText | None = None
    """What all keys together may spend in a day (UTC), such as 5usd; None: no limit."""
    max_tokens: Annotated[int, Field(ge=1, le=2**20)] = 512
    """Of a conversation's answer, where the request does not say."""
    aliases: Aliases = {}
    """Names that stand for models, the first that is served: fast=smollm2-135m,gemma3-270m; …"""
    public_url: PublicUrl = ""
    """Where people find it, such as https://llm.example.org, if a proxy stands before it."""
    dashboard: bool = True
    """Also serve the pages."""
    local_reading: bool = False
    """Show the pages without a session to every program of this machine. Never where a proxy on
    this machine passes strangers on."""
    metrics_port: Port | None = None
    """Port of `/metrics`; unset: nowhere, 0: any that is free."""
    metrics_host: str = "127.0.0.1"
    """Where `/metrics` is answered."""
    low_balance: TokenText = "1usd"
    """Warn when less than this can be spent."""
    max_file_bytes: Annotated[SizeBytes, Field(alias="max_file", ge=1)] = 512 * 2**20
    """The largest file that is taken."""
    files_per_key_bytes: Annotated[SizeBytes, Field(alias="files_per_key", ge=0)] = 4 * 2**30
    """How much a key may keep in files, what its batches wrote included."""
    keep_free_bytes: Annotated[SizeBytes, Field(alias="keep_free", ge=0)] = 2**30
    """No file is taken while less than this is free on the disk of the state folder."""
    batches_at_once: Annotated[int, Field(ge=1)] = 8
    """How many batches run side by side; others wait for their turn."""
    batches_per_key: Annotated[int, Field(ge=1)] = 2
    """How many of these may be one key's."""
    open_batches_per_key: Annotated[int, Field(ge=1)] = 100
    """How many batches of a key, running and waiting, have not ended; more are refused."""


class Auditor(_Section):
    """A juror or an auditor that watches."""

    metrics_port: Port | None = None
    """Port of `/metrics`; unset: nowhere, 0: any that is free."""
    metrics_host: str = "127.0.0.1"
    """Where `/metrics` is answered."""


class Engine(_Section):
    """How a model runs on this machine."""

    device: str = "auto"
    """Such as cpu, cuda or cuda:0,cuda:1 (the layers are spread over these); auto: the first GPU if
    there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of weights and activations."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Of the tensor library; 0: one, which is best where stages share a machine."""
    kv_memory_bytes: Annotated[SizeBytes | None, Field(alias="kv_memory")] = None
    """For keys and values; None: what the weights leave of miner.memory_limit, as far as requests
    can fill it."""
    offload_bytes: Annotated[SizeBytes, Field(alias="offload", ge=0)] = 0
    """For more keys and values, of requests whose turn is not near; they are copied there and back.
    0: none."""
    offload_folder: OptionalPath = None
    """Where these lie, in files that have no name; None: in ordinary memory, which counts."""
    prefix_share: Annotated[float, Field(ge=0, le=0.9)] = 0.25
    """Share of the near memory that may keep prompts for the next ones of the same requester, until
    it is needed; 0: none."""


class Failover(_Section):
    """When a silent machine counts as gone; a stream that ends is noticed at once."""

    ping_ms: Annotated[int, Field(ge=10, le=60_000)] = 250
    """How often stages and requesters ask each other whether they are there."""
    missed_pings: Annotated[int, Field(ge=1, le=100)] = 3
    """How many unanswered pings mean silence."""


class AlertSettings(_Section):
    """Who is told that money runs out, and when?"""

    webhook: str = ""
    """A URL that every alert is posted to; empty: alerts are only logged and counted."""
    secret_file: OptionalPath = None
    """A file with the secret that signs alerts, which its owner alone may read; needed with a
    webhook."""
    lasts_s: Annotated[Seconds, Field(alias="lasts", ge=0)] = 86400
    """Of a requester: money that lasts no longer than this at the present rate."""
    budget_bps: Annotated[int, Field(ge=1, le=10_000)] = 9000
    """Of a requester: a key of whose budget this much is gone."""
    stake_bps: Annotated[int, Field(ge=10_000, le=100_000)] = 11_000
    """Of a miner: a stake below this much of the least that may work."""
    unsettled_s: Annotated[Seconds, Field(alias="unsettled", ge=1)] = 3600
    """Of a miner: finished work that was not acknowledged or settled for this long."""


class Log(_Section):
    """What is said on stderr and kept in the state folder."""

    format: Literal["auto", "pretty", "json"] = "auto"
    """auto: pretty on a terminal, JSON otherwise."""
    level: Literal["auto", "debug", "info", "warning", "error"] = "auto"
    """auto: info for daemons, warning for other commands."""


class Settings(_Section):
    """Everything that is configured. Amounts of money are read by ``token`` and ``price``."""

    network: NetworkSettings = NetworkSettings()
    wallet: WalletSettings = WalletSettings()
    miner: MinerSettings = MinerSettings()
    client: Client = Client()
    sessions: SessionSettings = SessionSettings()
    matcher: Matcher = Matcher()
    gateway: GatewaySettings = GatewaySettings()
    auditor: Auditor = Auditor()
    engine: Engine = Engine()
    failover: Failover = Failover()
    alerts: AlertSettings = AlertSettings()
    log: Log = Log()

    _folders: Folders = PrivateAttr()
    _given: dict[str, Given] = PrivateAttr(default_factory=dict)

    @property
    def folders(self) -> Folders:
        return self._folders

    @property
    def _unit(self) -> dict[str, Any]:
        return {"symbol": self.network.token_symbol, "decimals": self.network.token_decimals}

    def origin(self, key: str) -> str:
        """What set a key, such as ``environment HEADRACE_WALLET``; else ``default``."""
        return self._given[key].origin if key in self._given else "default"

    def is_set(self, key: str) -> bool:
        """Whether it was set, and is not the default."""
        return key in self._given

    def effective(self) -> Iterator[tuple[str, Any, str]]:
        """Every key with its value as people write it and its origin; secrets are masked."""
        for key in sorted({*known_keys(), *self._given}):
            if key in ("network.contracts", "network.models"):
                continue
            given = self._given.get(key)
            value = given.value if given else _default_text(key)
            yield key, redact(_json_ready(value), key), self.origin(key)

    def token(self, text: str) -> units.TokenUnits:
        """``500usd`` → base units. Raises AmountUnitMissing, AmountInvalid."""
        return units.parse_token(text, **self._unit)

    def price(self, text: str) -> units.PricePerMtok:
        """``0.40usd/Mtok`` → base units per Mtok. Raises AmountUnitMissing, AmountInvalid."""
        return units.parse_price(text, **self._unit)

    def show_token(self, amount: int) -> str:
        """Base units → ``500usd``."""
        return units.format_token(amount, **self._unit)

    def money(self, text: str) -> str | None:
        """What `show_token` or `show_price` wrote, for people; None where the text is neither."""
        return units.money_for_people(text, symbol=self.network.token_symbol)

    def show_price(self, price: int) -> str:
        """Base units per Mtok → ``0.4usd/Mtok``."""
        return units.format_price(price, **self._unit)

    def require_network(self) -> tuple[int, str]:
        """Chain id and RPC URL. Raises ConfigError naming what is missing and how to give it."""
        network = self.network
        if network.chain_id is None or network.rpc_url is None:
            missing = [key for key in ("chain_id", "rpc_url") if getattr(network, key) is None]
            raise ConfigError(
                f"network '{network.name}' is not known here",
                why=f"no network file in {self.folders.networks} and nothing else sets "
                + " and ".join(f"network.{key}" for key in missing),
                next_step="start one with `devnet up`, or name a network file with --network FILE",
            )
        return network.chain_id, network.rpc_url

    def require_matcher_url(self) -> str:
        """The preferred matcher's. Raises ConfigError if no matcher is configured."""
        return self.require_matchers()[0][0]

    def require_matchers(self) -> list[tuple[str, str | None]]:
        """URLs of matchers, with their addresses where given. Raises ConfigError for none."""
        if not (places := self.network.matcher_places):
            raise ConfigError(
                f"network '{self.network.name}' names no matcher",
                why="network.matcher_url is not set",
                next_step="config set network.matcher_url URL",
            )
        return places


# --- loading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """A value and who gave it."""

    value: Any
    origin: str


def load(
    *,
    flags: Mapping[str, Any] | None = None,
    config_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    folders: Folders | None = None,
) -> Settings:
    """Gather every layer, check it and say where each value came from.

    ``flags`` maps dotted keys to values; None means not given. Raises ConfigKeyUnknown,
    ConfigError.
    """
    folders = folders or Folders.find(environ)
    given: dict[str, Given] = {}
    if folders.config_file.is_file():
        given |= _from_file(folders.config_file)
    named = config_file or environ.get("HEADRACE_CONFIG")
    if named:
        given |= _from_file(Path(named).expanduser())
    given |= _from_environment(environ)
    for key, value in (flags or {}).items():
        if value is not None:
            given[key] = Given(value, "flag")
    name = str(given.get("network.name", Given("devnet", "default")).value)
    network_file = find_network_file(name, folders)
    if network_file is not None:
        from_network = _from_file(network_file, section="network")
        if _is_path(name):  # --network FILE: the file's own name, or its stem
            given["network.name"] = from_network.pop(
                "network.name", Given(network_file.stem, f"network file {network_file}")
            )
        given = from_network | given
    for key, entry in given.items():
        _refuse_unknown(key, entry.origin)
    return _build(given, folders)


def find_network_file(name: str, folders: Folders) -> Path | None:
    """The file of a network: ``name`` itself if it is a path, else in the networks folder, or None.

    Raises ConfigError for a path that does not exist.
    """
    if _is_path(name):
        path = Path(name).expanduser()
        if not path.is_file():
            raise ConfigError(f"no network file {path}", why="there is no such file")
        return path
    for suffix in (".json", ".toml"):
        path = folders.networks / f"{name}{suffix}"
        if path.is_file():
            return path
    return None


def _is_path(network: str) -> bool:
    return "/" in network or network.endswith((".json", ".toml"))


def known_keys() -> dict[str, tuple[type[_Section], str]]:
    """Every dotted key as people write it → its section class and attribute."""
    keys: dict[str, tuple[type[_Section], str]] = {}
    for section, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, _Section):
            for attribute, inner in kind.model_fields.items():
                keys[f"{section}.{inner.alias or attribute}"] = (kind, attribute)
    return keys


def check_key(key: str) -> str:
    """The key itself, or what its short form means. Raises ConfigKeyUnknown with a suggestion."""
    key = f"{key}.{SHORT_SECTIONS[key]}" if key in SHORT_SECTIONS else key
    _refuse_unknown(key, "you")
    return key


def _build(given: dict[str, Given], folders: Folders) -> Settings:
    tree: dict[str, Any] = {}
    for key, entry in given.items():
        node, parts = tree, key.split(".")
        for part in parts[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{key} cannot be used", why=f"{part} is set as a value too")
        node[parts[-1]] = entry.value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise _explain(error, given) from None
    settings._folders = folders
    settings._given = given
    for key, parse in (
        ("miner.price_in", settings.price),
        ("miner.price_out", settings.price),
        ("miner.max_unpaid", settings.token),
        ("client.max_cost_per_job", settings.token),
        ("client.max_opening_fee", settings.token),
        ("matcher.opening_fee", settings.token),
        ("client.price_cap_in", settings.price),
        ("client.price_cap_out", settings.price),
        ("gateway.daily_budget", settings.token),
        ("gateway.low_balance", settings.token),
    ):
        if key in given:
            try:
                parse(str(given[key].value))
            except HeadraceError as error:
                raise ConfigError(
                    f"{key} cannot be used",
                    why=f"{error.what} ({given[key].origin}); {error.why}",
                    next_step=error.next_step,
                    key=key,
                ) from None
    return settings


def _explain(error: ValidationError, given: Mapping[str, Given]) -> ConfigError:
    first = error.errors(include_url=False, include_input=False)[0]
    parts = [str(part) for part in first["loc"]]
    ways = [".".join(parts[:size]) for size in range(len(parts), 0, -1)]
    key = next((way for way in ways if way in given), ways[0])
    entry = given.get(key)
    message = first["msg"].removeprefix("Value error, ")
    shown = f"{redact(_json_ready(entry.value), key)!r} from {entry.origin}: " if entry else ""
    return ConfigError(
        f"{key} cannot be used",
        why=f"{shown}{message}",
        next_step=f"correct it; `config show --origin` says where {key} is set",
        key=key,
    )


def _from_file(path: Path, *, section: str | None = None) -> dict[str, Given]:
    try:
        raw = read_file(path, most_bytes=MAX_FILE_BYTES)
        content = read_json(raw) if path.suffix == ".json" else tomllib.loads(raw.decode("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a table of settings")
        if section and "format" in content:
            from core.protocol.network_file import read_network

            content = read_network(raw).as_settings()
        flat = list(_flatten({section: content} if section else content))
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:  # RecursionError: TOML's reader is Python
        why, fix = str(error), "correct that line"
        raise ConfigError(f"{path} is not valid", why=why, next_step=fix) from None
    origin = f"{'network file' if section else 'file'} {path}"
    given = {}
    for key, value in flat:
        if key in PATH_KEYS and value and not str(value).startswith("~"):
            value = str(path.parent / str(value))  # relative to the file that says so
        given[key] = Given(value, origin)
    return given


def _flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values. Raises ValueError for tables that no setting lies in."""
    if prefix.count(".") > MAX_DEPTH:
        raise ValueError(f"its tables are nested more than {MAX_DEPTH} deep")
    for name, value in content.items():
        key = f"{prefix}{name}"
        if not prefix and key in SHORT_SECTIONS and not isinstance(value, dict):
            yield f"{key}.{SHORT_SECTIONS[key]}", value
        elif isinstance(value, dict):
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in NOT_SETTINGS and environ[name] != "":
            key = SHORT_VARIABLES.get(name) or name[len(PREFIX) :].lower().replace("__", ".")
            given[key] = Given(environ[name], f"environment {name}")
    for key, value, name in _from_foundry(environ):
        given.setdefault(key, Given(value, f"environment {name}"))
    return given


def _from_foundry(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    if url := environ.get("ETH_RPC_URL"):
        yield "network.rpc_url", url, "ETH_RPC_URL"
    if keystore := environ.get("ETH_KEYSTORE"):  # as in Foundry: a file, or a folder
        path = Path(keystore).expanduser()
        if path.is_dir():
            yield "wallet.keystore_dir", str(path), "ETH_KEYSTORE"
        else:
            yield "wallet.keystore_dir", str(path.parent), "ETH_KEYSTORE"
            yield "wallet.name", path.name, "ETH_KEYSTORE"
    if account := environ.get("ETH_KEYSTORE_ACCOUNT"):
        yield "wallet.name", account, "ETH_KEYSTORE_ACCOUNT"
    if password_file := environ.get("ETH_PASSWORD"):
        yield "wallet.password_file", password_file, "ETH_PASSWORD"


def _refuse_unknown(key: str, origin: str) -> None:
    keys = known_keys()
    if key in keys or key.startswith(("network.contracts.", "network.models.")):
        return
    key = key[:MOST_NAME_CHARACTERS]
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    if not close:
        same_end = [known for known in keys if known.split(".")[-1] == key.split(".")[-1]]
        close = same_end[:1]
    raise ConfigKeyUnknown(key, origin=origin, suggestion=close[0] if close else None)


def _default_text(key: str) -> Any:
    kind, attribute = known_keys()[key]
    default = kind.model_fields[attribute].get_default(call_default_factory=True)
    if isinstance(default, int) and attribute.endswith("_s"):
        return units.format_duration(default)
    if attribute == "layers":
        return "auto"
    return default


def _json_ready(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_json_ready(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
