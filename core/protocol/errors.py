"""What can go wrong, and what does each mistake tell the person, the script and the caller?

Every error says what failed, why (with the numbers), what state things are in now, and what to do
next. The same four lines appear on stderr, in JSON and in the API, keyed by ``code``; the exit code
tells the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

#: Characters of a line of an error. What it is about may be a stranger's, and of any length.
MOST_CHARACTERS = 2_000
NOTHING_CHANGED = "nothing was signed, sent or paid"


class HeadraceError(Exception):
    """A failure that a person can act on.

    ``what`` failed, ``why`` with the numbers, ``state`` now, ``next_step`` to type. ``details`` are
    JSON-ready values for programs; they must never contain a secret.
    """

    code: ClassVar[str] = "E-BUG-01"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    #: OpenAI-shaped ``error.type`` and ``error.code`` for the gateway.
    api_type: ClassVar[str] = "internal_error"
    api_code: ClassVar[str] = "internal_error"
    #: Whether the same call may succeed later, with nothing changed.
    retryable: ClassVar[bool] = False
    default_state: ClassVar[str] = NOTHING_CHANGED
    default_next: ClassVar[str] = "save a debug file with `debug save FILE` and report it"

    def __init__(
        self, what: str, why: str = "", state: str = "", next_step: str = "", **details: Any
    ) -> None:
        self.what = _cut(what)
        super().__init__(self.what)
        self.why = _cut(why) or _first_doc_line(type(self))
        self.state = _cut(state) or self.default_state
        self.next_step = _cut(next_step) or self.default_next
        self.details = details

    def __str__(self) -> str:
        return f"{self.what}: {self.why} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))

    def lines(self) -> tuple[str, str, str, str]:
        """The four lines a person reads: what failed, why, state now, next step."""
        return (
            f"error {self.code}: {self.what}",
            f"why:   {self.why}",
            f"state: {self.state}",
            f"next:  {self.next_step}",
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready values: ``code, type, reason, what, why, state, next, details``."""
        return {
            "code": self.code,
            "type": self.api_type,
            "reason": self.api_code,
            "what": self.what,
            "why": self.why,
            "state": self.state,
            "next": self.next_step,
            "details": {key: _json_ready(value) for key, value in self.details.items()},
        }


# --- exit 2: wrong use, bad configuration, models ---------------------------------------------


class UsageError(HeadraceError):
    """The command or request cannot be understood."""

    code = "E-USAGE-01"
    exit_code, http_status = 2, 400
    api_type, api_code = "invalid_request_error", "invalid_request"
    default_next = "see --help"


class AmountInvalid(UsageError):
    """The amount is not an exact number of base units."""

    code = "E-AMOUNT-02"
    api_code = "amount_invalid"
    default_next = "write a plain decimal number and a unit, such as 500usd"


class AmountUnitMissing(AmountInvalid):
    """A bare number could mean any unit."""

    code = "E-AMOUNT-01"
    api_code = "amount_unit_missing"

    def __init__(self, text: str, accepted: tuple[str, ...]) -> None:
        super().__init__(
            f"'{text}' has no unit",
            why="a bare number does not say what it counts",
            next_step="write it with one of: " + ", ".join(f"{text}{unit}" for unit in accepted),
            accepted=list(accepted),
        )


class IdInvalid(UsageError):
    """The id is unknown, ambiguous or malformed."""

    code = "E-ID-01"
    http_status = 404
    api_type, api_code = "not_found_error", "id_not_found"
    default_next = "list what exists with `ls` and copy a longer prefix"


class KeyOnCommandLine(UsageError):
    """A value on the command line looks like a raw private key."""

    code = "E-KEY-01"
    api_code = "key_on_command_line"
    default_state = "the key may already be in the shell history and in the process list"
    default_next = (
        "move the funds to a new key (`client wallet new NAME`) and clear the shell history; keys "
        "are only read from a hidden prompt, a keystore file or --stdin (if it is an id: use its "
        "short form)"
    )


class ConfirmationNeeded(UsageError):
    """A question needs an answer and there is no terminal to ask at."""

    code = "E-USAGE-02"
    api_code = "confirmation_needed"
    default_next = "repeat the command with --yes"


class LineInvalid(UsageError):
    """A line of a JSONL file cannot be read as a request."""

    code = "E-LINE-01"
    api_code = "line_invalid"
    default_next = "correct that line and submit it again; the other lines are not affected"

    def __init__(self, line_number: int, why: str, *, custom_id: str | None = None) -> None:
        named = f" ({custom_id})" if custom_id else ""
        super().__init__(
            f"line {line_number}{named} is not a request",
            why=why,
            state="this line is skipped and free of charge; the others run",
            line_number=line_number,
            custom_id=custom_id,
        )


class GrammarInvalid(UsageError):
    """The grammar that an answer must follow cannot be read, or is too large."""

    code = "E-GRAMMAR-01"
    api_code = "grammar_invalid"
    default_next = "correct the schema or grammar, or ask without it"

    def __init__(self, why: str, **details: Any) -> None:
        super().__init__("the answer's grammar cannot be used", why, **details)


class ContextTooLong(UsageError):
    """The prompt and its answer do not fit into the model's context."""

    code = "E-CONTEXT-01"
    api_code = "context_length_exceeded"

    def __init__(
        self,
        *,
        prompt_tokens: int,
        max_new_tokens: int,
        context_tokens: int,
        is_counted: bool = True,
    ) -> None:
        """`is_counted`: whether the prompt's tokens were counted, or are at least that many."""
        room = max(0, context_tokens - max_new_tokens)
        least = "" if is_counted else "at least "
        super().__init__(
            f"the prompt of {least}{prompt_tokens} tokens does not fit",
            why=f"{prompt_tokens} prompt + {max_new_tokens} new tokens exceed the context of "
            f"{context_tokens} by {prompt_tokens + max_new_tokens - context_tokens}",
            next_step=f"shorten the prompt to {room} tokens, or lower max_tokens (--max-tokens)",
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            context_tokens=context_tokens,
        )


class ConfigError(HeadraceError):
    """A setting cannot be used."""

    code = "E-CONFIG-01"
    exit_code, http_status = 2, 400
    api_type, api_code = "invalid_request_error", "config_invalid"
    default_next = "see every value and where it comes from: `config show --origin`"


class ConfigKeyUnknown(ConfigError):
    """A setting has a name that nothing reads."""

    code = "E-CONFIG-02"

    def __init__(self, key: str, *, origin: str, suggestion: str | None = None) -> None:
        mean = f"did you mean '{suggestion}'?" if suggestion else ""
        super().__init__(
            f"unknown setting '{key}'",
            why=f"it is set by {origin}, and nothing reads it",
            next_step=mean or "list the settings: `config show`",
            key=key,
            origin=origin,
            suggestion=suggestion,
        )


class ModelError(HeadraceError):
    """A model cannot be used."""

    code = "E-MODEL-00"
    exit_code, http_status = 2, 404
    api_type, api_code = "not_found_error", "model_not_found"
    default_next = "list the models on offer: `client models`"


class ModelUnknown(ModelError):
    """No such model in the registry."""

    code = "E-MODEL-01"


class ModelUnsupported(ModelError):
    """The model's architecture or weight format cannot be run here."""

    code = "E-MODEL-02"
    http_status = 400
    api_type, api_code = "invalid_request_error", "model_unsupported"
    default_next = (
        "use a dense decoder of the llama, qwen2, qwen3, mistral, gemma2, gemma3 or gpt2 family"
    )


class ModelMissing(ModelError):
    """The model's weights are not on this machine."""

    code = "E-MODEL-03"
    api_code = "model_missing"
    default_next = "fetch it: `miner models pull NAME`"


class ModelGated(ModelError):
    """Its makers show the model only to those who said who they are and took their terms."""

    code = "E-MODEL-05"
    exit_code, http_status = 2, 403
    api_code = "model_gated"
    default_next = "accept the licence on the model's page, then `hf auth login` or set HF_TOKEN"


class ModelInUse(ModelError):
    """A program of this machine works with the model's files."""

    code = "E-MODEL-06"
    exit_code, http_status = 2, 409
    api_code = "model_in_use"


class DiskFull(HeadraceError):
    """A disk has no room for what is asked for."""

    code = "E-DISK-01"
    exit_code, http_status = 2, 507
    api_type, api_code = "capacity_error", "disk_full"


class NameTaken(ModelError):
    """The publisher's name means another model."""

    code = "E-MODEL-04"
    exit_code, http_status = 2, 409
    api_code = "model_name_taken"


# --- exit 3: a peer is out of reach, or cannot be understood --------------------------------------


class Unreachable(HeadraceError):
    """A peer does not answer."""

    code = "E-NET-00"
    exit_code, http_status = 3, 503
    api_type, api_code = "capacity_error", "unreachable"
    retryable = True
    default_next = "check the address and that the other side is running, then try again"


class ChainUnreachable(Unreachable):
    """The chain's RPC endpoint does not answer."""

    code = "E-NET-01"
    api_code = "chain_unreachable"
    default_next = "check --rpc-url; on one machine start the chain with `devnet up`"


class MatcherUnreachable(Unreachable):
    """The matcher does not answer."""

    code = "E-NET-02"
    api_code = "matcher_unreachable"
    default_next = "check network.matcher_url; on one machine look at `devnet status`"


class PeerUnreachable(Unreachable):
    """A peer of the swarm does not answer."""

    code = "E-NET-03"
    api_code = "peer_unreachable"


class WireError(HeadraceError):
    """A peer's bytes break the protocol: they are counted and dropped, and stop no loop."""

    code = "E-WIRE-00"
    exit_code, http_status = 3, 502
    api_type, api_code = "capacity_error", "peer_misbehaved"
    default_state = "the frame was dropped and the connection closed"
    default_next = "nothing to do here; the peer is avoided"


class FrameTooLarge(WireError):
    """A frame is larger than the limit."""

    code = "E-WIRE-01"


class FrameTruncated(WireError):
    """A frame ends before its announced length."""

    code = "E-WIRE-02"


class VersionUnknown(WireError):
    """A frame speaks a protocol version that this program does not know."""

    code = "E-WIRE-03"
    default_next = "update this program if the peer is newer"


class AuthenticationFailed(WireError):
    """A frame or signature is not from whom it claims to be."""

    code = "E-WIRE-04"


class MalformedMessage(WireError):
    """A frame's content is not a message of this protocol."""

    code = "E-WIRE-05"


# --- exit 4: wallets ---------------------------------------------------------------------------


class WalletError(HeadraceError):
    """A wallet cannot be used."""

    code = "E-WALLET-00"
    exit_code, http_status = 4, 400
    api_type, api_code = "invalid_request_error", "wallet_error"
    default_next = "list the wallets: `client wallet ls`"


class WalletMissing(WalletError):
    """No such wallet in the keystore folder."""

    code = "E-WALLET-01"
    api_code = "wallet_missing"


class WrongPassword(WalletError):
    """The password does not open this wallet."""

    code = "E-WALLET-02"
    api_code = "wrong_password"
    default_next = "try again, or check the file named by --password-file"


class DevKeyOffDevnet(WalletError):
    """A publicly known test key must not be used on a real chain."""

    code = "E-WALLET-03"
    api_code = "dev_key_off_devnet"
    default_next = "make a wallet of your own: `client wallet new NAME`"


class KeystoreInvalid(WalletError):
    """A file in the keystore folder is not a version 3 keystore."""

    code = "E-WALLET-04"
    api_code = "keystore_invalid"


class SecretFileTooOpen(WalletError):
    """Other users of this machine can read a secret file."""

    code = "E-WALLET-05"
    api_code = "secret_file_too_open"


class PasswordMissing(WalletError):
    """A password is needed and there is no terminal to ask at."""

    code = "E-WALLET-06"
    api_code = "password_missing"
    default_next = "pass --password-file FILE or set HEADRACE_PASSWORD_FILE"


class WalletExists(WalletError):
    """A wallet of that name exists and is never overwritten."""

    code = "E-WALLET-07"
    api_code = "wallet_exists"
    default_next = "choose another name"


class NativeCryptoMissing(WalletError):
    """Signing needs the native secp256k1 library, whose running time does not depend on the key."""

    code = "E-WALLET-08"
    api_code = "native_crypto_missing"
    default_next = "install the 'coincurve' package for this platform"


# --- exit 5: money -----------------------------------------------------------------------------


class FundsError(HeadraceError):
    """Not enough money: always have, need, short by, address, fix.

    Amounts are integers of base units; ``show`` prints them with their unit. In JSON they are
    strings, because they may be larger than what JSON readers keep exact.
    """

    code = "E-FUNDS-00"
    exit_code, http_status = 5, 402
    api_type, api_code = "billing_error", "insufficient_funds"

    def __init__(
        self,
        what: str,
        *,
        have: int,
        need: int,
        address: str,
        fix: str,
        show: Callable[[int], str] = str,
        chain_id: int | None = None,
        state: str = "",
    ) -> None:
        self.have = have
        self.need = need
        self.short_by = need - have
        self.address = address
        self.fix = fix
        where = f"{address} on chain {chain_id}" if chain_id is not None else address
        super().__init__(
            what,
            why=f"have {show(have)}, need {show(need)}, short by {show(self.short_by)} at {where}",
            state=state,
            next_step=fix,
            have=str(have),
            need=str(need),
            short_by=str(self.short_by),
            address=address,
            chain_id=chain_id,
            fix=fix,
        )


class TokenShort(FundsError):
    """The wallet holds too little of the network's token."""

    code = "E-FUNDS-01"


class GasShort(FundsError):
    """The wallet holds too little ETH for the fee."""

    code = "E-FUNDS-02"


class DepositShort(FundsError):
    """The prepaid balance in the escrow is too small."""

    code = "E-FUNDS-03"


class StakeTooLow(FundsError):
    """The stake is below the minimum."""

    code = "E-FUNDS-04"
    api_code = "stake_too_low"


# --- exit 6 to 9 and 130 -----------------------------------------------------------------------


class ContractRefused(HeadraceError):
    """The contract said no: the decoded custom error and its arguments."""

    code = "E-CONTRACT-01"
    exit_code, http_status = 6, 409
    api_type, api_code = "conflict_error", "contract_refused"
    default_next = "the troubleshooting page lists each contract error by name"

    def __init__(
        self,
        what: str,
        *,
        error: str,
        args: Mapping[str, Any] | None = None,
        state: str = "",
        next_step: str = "",
        **details: Any,
    ) -> None:
        self.error = error
        self.error_args = dict(args or {})
        shown = ", ".join(f"{name}={_json_ready(value)}" for name, value in self.error_args.items())
        super().__init__(
            what,
            why=f"the contract answered {error}({shown})",
            state=state,
            next_step=next_step,
            error=error,
            args=self.error_args,
            **details,
        )


class NoCapacity(HeadraceError):
    """No pipeline serves this at this price."""

    code = "E-MATCH-01"
    exit_code, http_status = 7, 503
    api_type, api_code = "capacity_error", "no_route"
    retryable = True
    default_next = (
        "raise the price cap, wait, or choose another model: `client models offers --sort price`"
    )

    def __init__(
        self,
        what: str,
        why: str = "",
        state: str = "",
        next_step: str = "",
        *,
        nearest_offer: str | None = None,
        **details: Any,
    ) -> None:
        if nearest_offer:
            why = f"{why or 'no offer meets the terms'}; nearest offer: {nearest_offer}"
        super().__init__(what, why, state, next_step, nearest_offer=nearest_offer, **details)


class PriceAboveCap(NoCapacity):
    """Somebody serves it, for more than is allowed: asking again changes nothing."""

    code = "E-MATCH-02"
    http_status = 402
    api_type, api_code = "invalid_request_error", "price_above_cap"
    retryable = False
    default_next = "raise the price cap, or see `client models offers --sort price`"


class DeadlinePassed(HeadraceError):
    """A deadline passed; the state is safe and can be resumed."""

    code = "E-DEADLINE-01"
    exit_code, http_status = 8, 504
    api_type, api_code = "timeout_error", "deadline_exceeded"
    default_state = "everything done so far is kept"

    def __init__(
        self, what: str, why: str = "", state: str = "", *, resume: str, **details: Any
    ) -> None:
        super().__init__(what, why, state, f"resume with: {resume}", resume=resume, **details)


class CheckFailed(HeadraceError):
    """A check failed: an answer, receipt or commitment does not match."""

    code = "E-CHECK-01"
    exit_code, http_status = 9, 422
    api_type, api_code = "invalid_request_error", "check_failed"
    default_next = "look closer: `auditor check RECEIPT`"


class PlanInvalid(CheckFailed):
    """The stages of a plan do not cover the layers exactly once."""

    code = "E-PLAN-01"
    api_code = "plan_invalid"
    default_next = "refuse the plan; ask the matcher for another one"

    def __init__(
        self,
        why: str,
        *,
        gap: tuple[int, int] | None = None,
        overlap: tuple[int, int] | None = None,
    ) -> None:
        super().__init__("the plan is refused", why=why, gap=gap, overlap=overlap)

    @classmethod
    def with_gap(cls, layer_from: int, layer_to: int) -> PlanInvalid:
        """No stage serves the layers ``[layer_from, layer_to)``."""
        named = f"layers {layer_from} to {layer_to - 1}"
        return cls(f"{named} are served by nobody", gap=(layer_from, layer_to))

    @classmethod
    def with_overlap(cls, layer_from: int, layer_to: int) -> PlanInvalid:
        """Two stages serve the layers ``[layer_from, layer_to)``."""
        named = f"layers {layer_from} to {layer_to - 1}"
        return cls(f"{named} are served twice", overlap=(layer_from, layer_to))


class RowsWithheld(CheckFailed):
    """No rows were handed over that match what the stage signed."""

    code = "E-CHECK-02"
    api_code = "rows_withheld"


class Interrupted(HeadraceError):
    """Stopped by the person."""

    code = "E-INT-01"
    exit_code, http_status = 130, 503
    api_type, api_code = "capacity_error", "interrupted"
    default_state = "everything done so far is kept"
    default_next = "run the same command again to go on"

    def __init__(
        self,
        what: str = "interrupted",
        why: str = "Ctrl-C was pressed",
        state: str = "",
        next_step: str = "",
        **details: Any,
    ) -> None:
        super().__init__(what, why, state, next_step, **details)


def every_error() -> Iterator[type[HeadraceError]]:
    """Each class of the tree once, parents before children."""
    pending: list[type[HeadraceError]] = [HeadraceError]
    while pending:
        kind = pending.pop(0)
        yield kind
        pending.extend(kind.__subclasses__())


def error_from(document: Mapping[str, Any], unknown: type[HeadraceError]) -> HeadraceError:
    """The error that `to_dict` was made of; of class `unknown` where its code is none of ours.

    What the document lacks is empty.
    """
    kind = next((k for k in every_error() if k.code == document.get("code")), unknown)
    error = kind.__new__(kind)
    words = (str(document.get(name) or "") for name in ("what", "why", "state", "next"))
    HeadraceError.__init__(error, *words)
    details = document.get("details")
    error.details = dict(details) if isinstance(details, Mapping) else {}
    return error


def _cut(line: str) -> str:
    more = len(line) - MOST_CHARACTERS
    return line if more <= 0 else f"{line[:MOST_CHARACTERS]}… and {more} characters more"


def _first_doc_line(kind: type[HeadraceError]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0].rstrip(".")


def _rebuild(
    kind: type[HeadraceError], args: tuple[Any, ...], state: dict[str, Any]
) -> HeadraceError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _json_ready(value: Any) -> Any:
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(key): _json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_ready(item) for item in value]
    return str(value)
