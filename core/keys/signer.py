"""What signs, and how does it keep its key to itself?

An opened key exists in one ``Signer`` and nowhere else: neither ``repr``, pickle, a log line nor a
traceback shows it. The accounts of Anvil's public phrase are refused off local chains.
"""

from __future__ import annotations

import secrets
from typing import Any, Final, NoReturn

from core.protocol.errors import DevKeyOffDevnet, NativeCryptoMissing, UsageError
from core.protocol.ids import Address, address

DEVNET_CHAIN_IDS: Final = frozenset({31337, 1337})
DEVNET_PHRASE: Final = "test test test test test test test test test test test junk"
DEVNET_PASSWORD: Final = "devnet"
DEVNET_ADDRESSES: Final = frozenset(
    {
        Address("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"),
        Address("0x70997970C51812dc3A010C7d01b50e0d17dc79C8"),
        Address("0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"),
        Address("0x90F79bf6EB2c4f870365E785982E1f101E93b906"),
        Address("0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65"),
        Address("0x9965507D1a55bcC2695C58ba16FB37d819B0A4dc"),
        Address("0x976EA74026E726554dB657fA54763abd0C3a0aa9"),
        Address("0x14dC79964da2C08b23698B3D3cc7Ca32193d9955"),
        Address("0x23618e81E3f5cdF7f54C3d65f7FBc0aBf5B21E8f"),
        Address("0xa0Ee7A142d267C1f36714E4a8F75612F20a79720"),
    }
)

_CURVE_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


class Signer:
    """One opened key, bound to one chain. It signs; it never tells.

    Signatures are 65 bytes ``r ‖ s ‖ v`` with low s and v ∈ {27, 28} (docs/protocol.md §2), nonces
    by RFC 6979, computed by the native secp256k1 library only.
    """

    __slots__ = ("_key", "address", "chain_id")
    _key: Any
    address: Address
    chain_id: int

    def __init__(self, secret: bytes, *, chain_id: int) -> None:
        """Raises DevKeyOffDevnet for a public test key on a chain that is not local."""
        key = native_key(secret)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "address", address_of_key(key))
        object.__setattr__(self, "chain_id", chain_id)
        refuse_dev_key(self.address, chain_id)

    def sign_digest(self, digest: bytes) -> bytes:
        """65 bytes ``r ‖ s ‖ v`` over 32 bytes that are already a hash."""
        if len(digest) != 32:
            raise ValueError(f"a digest has 32 bytes, not {len(digest)}")
        signature: bytes = self._key.sign_recoverable(digest, hasher=None)
        return signature[:64] + bytes([signature[64] + 27])

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Signer cannot be changed")

    def __repr__(self) -> str:
        return f"Signer({self.address}, chain_id={self.chain_id}, key=********)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Signer is never pickled or copied: the key stays in this process")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self.__reduce__()


def refuse_dev_key(who: str, chain_id: int) -> None:
    """Raises DevKeyOffDevnet if this address's key is public and the chain is not local."""
    if who in DEVNET_ADDRESSES and chain_id not in DEVNET_CHAIN_IDS:
        raise DevKeyOffDevnet(
            f"{who} must not be used on chain {chain_id}",
            why="its key derives from Anvil's public test phrase: every reader of it can spend",
            address=who,
            chain_id=chain_id,
        )


def secret_from_phrase(phrase: str, index: int = 0) -> bytes:
    """The 32-byte key at m/44'/60'/0'/0/index. Raises UsageError if the phrase is not BIP-39."""
    from eth_account.hdaccount import key_from_seed, seed_from_mnemonic
    from eth_utils.exceptions import ValidationError

    try:
        seed = seed_from_mnemonic(" ".join(phrase.split()), "")
    except ValidationError:
        raise UsageError(
            "that is not a recovery phrase",
            why="its words or its checksum word are wrong",
            next_step="check each word and the order",
        ) from None
    return key_from_seed(seed, f"m/44'/60'/0'/0/{index}")


def random_secret() -> bytes:
    """32 bytes that are a valid key."""
    while True:
        candidate = secrets.token_bytes(32)
        if 0 < int.from_bytes(candidate, "big") < _CURVE_ORDER:
            return candidate


def native_key(secret: bytes) -> Any:
    """The native library's key object. Raises NativeCryptoMissing, UsageError if it is no key."""
    try:
        from coincurve import PrivateKey
    except ImportError as error:
        why = f"importing coincurve failed: {error}"
        raise NativeCryptoMissing("cannot sign", why=why) from error
    if len(secret) != 32 or not 0 < int.from_bytes(secret, "big") < _CURVE_ORDER:
        raise UsageError("that is not a private key", why="it is outside the range of the curve")
    return PrivateKey(secret)


def address_of_key(key: Any) -> Address:
    """The address of a native key: the last 20 bytes of the Keccak hash of its public point."""
    from eth_hash.auto import keccak

    return address(keccak(key.public_key.format(compressed=False)[1:])[12:])
