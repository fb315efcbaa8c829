"""Does every error carry a stable code, an exit code, an HTTP status and four lines?"""

import json
import pickle

import pytest

from core.protocol import errors, units
from core.protocol.errors import HeadraceError, every_error

EXIT_CODES = {
    errors.UsageError: 2,
    errors.ConfigError: 2,
    errors.ModelUnknown: 2,
    errors.ModelUnsupported: 2,
    errors.ModelMissing: 2,
    errors.AmountUnitMissing: 2,
    errors.LineInvalid: 2,
    errors.ContextTooLong: 2,
    errors.ChainUnreachable: 3,
    errors.MatcherUnreachable: 3,
    errors.PeerUnreachable: 3,
    errors.FrameTooLarge: 3,
    errors.WalletMissing: 4,
    errors.WrongPassword: 4,
    errors.DevKeyOffDevnet: 4,
    errors.TokenShort: 5,
    errors.GasShort: 5,
    errors.DepositShort: 5,
    errors.StakeTooLow: 5,
    errors.ContractRefused: 6,
    errors.NoCapacity: 7,
    errors.DeadlinePassed: 8,
    errors.CheckFailed: 9,
    errors.PlanInvalid: 9,
    errors.Interrupted: 130,
    HeadraceError: 1,
}
CODES = """\
HeadraceError E-BUG-01
UsageError E-USAGE-01
AmountInvalid E-AMOUNT-02
AmountUnitMissing E-AMOUNT-01
IdInvalid E-ID-01
KeyOnCommandLine E-KEY-01
ConfirmationNeeded E-USAGE-02
LineInvalid E-LINE-01
GrammarInvalid E-GRAMMAR-01
ContextTooLong E-CONTEXT-01
ConfigError E-CONFIG-01
ConfigKeyUnknown E-CONFIG-02
ModelError E-MODEL-00
ModelUnknown E-MODEL-01
ModelUnsupported E-MODEL-02
ModelMissing E-MODEL-03
ModelGated E-MODEL-05
ModelInUse E-MODEL-06
DiskFull E-DISK-01
NameTaken E-MODEL-04
Unreachable E-NET-00
ChainUnreachable E-NET-01
MatcherUnreachable E-NET-02
PeerUnreachable E-NET-03
WireError E-WIRE-00
FrameTooLarge E-WIRE-01
FrameTruncated E-WIRE-02
VersionUnknown E-WIRE-03
AuthenticationFailed E-WIRE-04
MalformedMessage E-WIRE-05
WalletError E-WALLET-00
WalletMissing E-WALLET-01
WrongPassword E-WALLET-02
DevKeyOffDevnet E-WALLET-03
KeystoreInvalid E-WALLET-04
SecretFileTooOpen E-WALLET-05
PasswordMissing E-WALLET-06
WalletExists E-WALLET-07
NativeCryptoMissing E-WALLET-08
FundsError E-FUNDS-00
TokenShort E-FUNDS-01
GasShort E-FUNDS-02
DepositShort E-FUNDS-03
StakeTooLow E-FUNDS-04
ContractRefused E-CONTRACT-01
NoCapacity E-MATCH-01
PriceAboveCap E-MATCH-02
DeadlinePassed E-DEADLINE-01
CheckFailed E-CHECK-01
PlanInvalid E-PLAN-01
RowsWithheld E-CHECK-02
Interrupted E-INT-01
"""
EXAMPLES = [
    HeadraceError("x"),
    errors.AmountUnitMissing("500", ("usd",)),
    errors.LineInvalid(3, "not JSON", custom_id="a"),
    errors.ContextTooLong(prompt_tokens=9000, max_new_tokens=200, context_tokens=8192),
    errors.ConfigKeyUnknown("miner.prise", origin="file x", suggestion="miner.price_in"),
    errors.ContractRefused("cannot register", error="StakeTooLow", args={"have": 1, "need": b"\1"}),
    errors.NoCapacity("no pipeline", nearest_offer="0.5usd/Mtok"),
    errors.DeadlinePassed("job_7QK3 is late", resume="client jobs wait job_7QK3"),
    errors.PlanInvalid.with_gap(8, 10),
    errors.PlanInvalid.with_overlap(8, 10),
    errors.Interrupted(),
    errors.DepositShort("x", have=1, need=3, address="0xab", fix="client wallet deposit 2usd"),
]


def test_codes_are_unique_and_well_formed():
    codes = [kind.code for kind in every_error()]
    assert len(codes) == len(set(codes)) > 40
    assert all(code.startswith("E-") and code[-2:].isdigit() for code in codes)


def test_a_code_never_changes_its_meaning():
    # A role may add a class of its own (the devnet does), loaded when its tests run beside these.
    ours = (kind for kind in every_error() if kind.__module__ == errors.__name__)
    assert {kind.__name__: kind.code for kind in ours} == dict(map(str.split, CODES.splitlines()))


@pytest.mark.parametrize(("kind", "code"), EXIT_CODES.items())
def test_exit_codes_are_the_documented_ones(kind, code):
    assert kind.exit_code == code


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
def test_each_error_has_four_lines_survives_pickling_and_becomes_json(error):
    lines = error.lines()
    assert len(lines) == 4
    assert all(line.partition(":")[2].strip() for line in lines)
    document = json.loads(json.dumps(error.to_dict()))
    assert document["code"] == error.code
    assert {"what", "why", "state", "next", "type", "reason", "details"} <= document.keys()
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert copy.to_dict() == error.to_dict()


def test_missing_funds_name_have_need_short_by_address_and_fix():
    error = errors.TokenShort(
        "cannot lock 30usd",
        have=12_000_000,
        need=30_000_000,
        address="0xf39F",
        chain_id=31337,
        fix="client wallet deposit 18usd",
        show=units.format_token,
    )
    assert error.why == "have 12usd, need 30usd, short by 18usd at 0xf39F on chain 31337"
    assert error.next_step == "client wallet deposit 18usd"
    assert error.to_dict()["details"]["short_by"] == "18000000"


def test_a_refusal_of_the_contract_shows_the_decoded_error_with_its_arguments():
    error = errors.ContractRefused("x", error="StakeTooLow", args={"have": 1, "need": 5})
    assert "StakeTooLow(have=1, need=5)" in error.why
    assert error.args == ("x",)


def test_a_gap_in_a_plan_names_its_layers():
    assert "layers 8 to 9" in errors.PlanInvalid.with_gap(8, 10).why
