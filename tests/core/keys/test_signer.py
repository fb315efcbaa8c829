"""Does a signer sign what the chain accepts, and keep its key to itself?"""

import copy
import pickle
import sys
import traceback

import pytest
from eth_account import Account
from eth_account._utils.signing import to_standard_signature_bytes
from eth_keys.datatypes import Signature
from hypothesis import given
from hypothesis import strategies as st

from core.chain.sending import sign_transaction
from core.keys import signer as signer_module
from core.keys.signer import DEVNET_ADDRESSES, Signer, random_secret, secret_from_phrase
from core.protocol.errors import (
    DevKeyOffDevnet,
    NativeCryptoMissing,
    UsageError,
)
from tests.accounts import devnet_accounts

SECRET = bytes(range(1, 33))
HALF_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141 // 2


@given(st.binary(min_size=32, max_size=32))
def test_a_signature_recovers_to_the_signer_with_low_s_and_v_27_or_28(digest):
    signer = Signer(SECRET, chain_id=1)
    signature = signer.sign_digest(digest)
    assert len(signature) == 65
    assert signature[64] in (27, 28)
    assert int.from_bytes(signature[32:64], "big") <= HALF_ORDER
    recovered = Signature(to_standard_signature_bytes(signature)).recover_public_key_from_msg_hash(
        digest
    )
    assert recovered.to_checksum_address() == signer.address


def test_the_signature_equals_that_of_eth_account():
    digest = b"\x07" * 32
    theirs = Account.unsafe_sign_hash(digest, SECRET).signature
    assert Signer(SECRET, chain_id=1).sign_digest(digest) == theirs


@pytest.mark.parametrize("digest", [b"", bytes(31), bytes(33)])
def test_only_a_digest_is_signed(digest):
    with pytest.raises(ValueError, match="32 bytes"):
        Signer(SECRET, chain_id=1).sign_digest(digest)


TO = "0x" + "11" * 20


def test_a_signed_transaction_is_the_one_eth_account_makes():
    fees = {"maxFeePerGas": 10**9, "maxPriorityFeePerGas": 1}
    transaction = {"to": TO, "value": 7, "gas": 21000, "nonce": 3, "chainId": 5, "type": 2, **fees}
    theirs = Account.sign_transaction(transaction, SECRET)
    signer = Signer(SECRET, chain_id=5)
    ours = sign_transaction(signer, {**transaction, "data": "0x", "accessList": ()})
    assert ours == bytes(theirs.raw_transaction)
    assert Account.recover_transaction(ours) == signer.address


def test_the_key_shows_nowhere():
    signer = Signer(SECRET, chain_id=1)
    shown = [repr(signer), str(signer), f"{signer}", repr([signer]), repr(dir(signer))]
    try:
        signer.sign_digest(b"short")
    except ValueError:
        shown.append(
            "".join(traceback.TracebackException(*sys.exc_info(), capture_locals=True).format())
        )
    for text in shown:
        assert SECRET.hex() not in text
        assert repr(SECRET)[2:-1] not in text


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_signer_is_neither_pickled_nor_copied(attempt):
    with pytest.raises(TypeError, match="never pickled"):
        attempt(Signer(SECRET, chain_id=1))


def test_a_signer_cannot_be_changed():
    with pytest.raises(AttributeError):
        Signer(SECRET, chain_id=1).chain_id = 2


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(31), b""])
def test_only_numbers_below_the_curve_order_are_keys(secret):
    with pytest.raises(UsageError):
        Signer(secret, chain_id=1)


def test_without_the_native_library_nothing_is_signed(monkeypatch):
    monkeypatch.setitem(sys.modules, "coincurve", None)
    with pytest.raises(NativeCryptoMissing) as caught:
        Signer(SECRET, chain_id=1)
    assert "coincurve" in caught.value.next_step


def test_the_ten_accounts_of_anvil_are_derived_and_known():
    assert {signer.address for signer in devnet_accounts(10)} == DEVNET_ADDRESSES


@pytest.mark.parametrize("chain_id", [31337, 1337])
def test_dev_accounts_work_on_local_chains(chain_id):
    assert devnet_accounts(1, chain_id=chain_id)[0].chain_id == chain_id


@pytest.mark.parametrize("chain_id", [1, 8453, 11155111, 0])
def test_dev_accounts_are_refused_on_every_other_chain(chain_id):
    with pytest.raises(DevKeyOffDevnet):
        devnet_accounts(1, chain_id=chain_id)
    for index in range(10):
        with pytest.raises(DevKeyOffDevnet):
            Signer(secret_from_phrase(signer_module.DEVNET_PHRASE, index), chain_id=chain_id)


def test_a_phrase_with_a_wrong_checksum_is_refused():
    with pytest.raises(UsageError, match="recovery phrase"):
        secret_from_phrase("test " * 12)


def test_random_keys_differ():
    assert len({random_secret() for _ in range(100)}) == 100
