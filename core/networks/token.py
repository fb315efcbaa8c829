"""Does an ERC-20 move exactly what it is told to move, as the contracts rely on?

A node runs `TokenProbe` at a holder's address in a call that changes nothing, and moves half of
what the holder has, twice: a share of that shows, as one of a little would be rounded away. What a
token may become later nobody finds so: a proxy's code, or a fee that its owner can raise, is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError

from core.chain.artifacts import artifact
from core.chain.rpc import RpcChain
from core.networks.code import code_at
from core.protocol.errors import CheckFailed, ConfigError, ContractRefused
from core.protocol.hashing import keccak
from core.protocol.ids import address
from core.protocol.network_file import TokenFacts

#: Moved at least, so that a fee of one in ten thousand shows.
LEAST_MOVED_UNITS: Final = 10_000
#: An account that nobody has, to which the probe moves tokens.
_NOBODY: Final = "0x" + keccak(b"headrace token probe")[12:].hex()
_IMPLEMENTATION: Final = f"0x{int.from_bytes(keccak(b'eip1967.proxy.implementation')) - 1:064x}"
_BEACON: Final = f"0x{int.from_bytes(keccak(b'eip1967.proxy.beacon')) - 1:064x}"
#: Functions of tokens whose balances move without a transfer.
REBASING: Final = (
    "rebase(uint256,int256)",
    "rebase(uint256)",
    "gonsForBalance(uint256)",
    "scaledBalanceOf(address)",
    "sharesOf(address)",
    "getPooledEthByShares(uint256)",
    "rebasingCreditsPerToken()",
    "balanceForGons(uint256)",
)
#: Functions of tokens that can begin to keep a part of every transfer.
FEE_SETTING: Final = ("setParams(uint256,uint256)", "basisPointsRate()", "setTaxRate(uint256)")


@dataclass(frozen=True)
class TokenReport:
    """What was found: the token's own words, and what its holders depend on from now on."""

    facts: TokenFacts
    warnings: tuple[str, ...]


async def examine_token(chain: RpcChain, token: str, holder: str) -> TokenReport:
    """Read the token and move half of what `holder` has, in a simulation.

    Raises CheckFailed for a token that cannot be used, ConfigError where nothing can be simulated,
    ChainUnreachable.
    """
    code = await code_at(chain, token)
    if not code:
        raise CheckFailed(f"no token at {token}", why="there is no code", next_step="look it up")
    facts = await read_token(chain, token)
    behind = await _implementation(chain, token)
    code += await code_at(chain, behind) if behind else b""
    if names := _in_code(code, REBASING):
        raise CheckFailed(
            f"{facts.symbol} changes balances without a transfer",
            why=f"its code has {', '.join(names)}; the escrow would owe more than it has, or less",
            next_step="use a token whose balances stay, such as one that wraps it",
        )
    await _probe(chain, token, holder, facts)
    warnings = [f"its code can be changed: it is a proxy of {behind}"] if behind else []
    if names := _in_code(code, FEE_SETTING):
        warnings.append(f"it may keep a part of transfers one day: its code has {', '.join(names)}")
    return TokenReport(facts, tuple(warnings))


async def read_token(chain: RpcChain, token: str) -> TokenFacts:
    """A token's own words. Raises CheckFailed where it does not answer as an ERC-20."""
    symbol: str = await _read(chain, token, "symbol()", "string")
    return TokenFacts(
        address=address(token),
        symbol="".join(filter(str.isprintable, symbol))[:40],
        decimals=await _read(chain, token, "decimals()", "uint8"),
    )


def selector(signature: str) -> bytes:
    """The four bytes by which a function is called."""
    return keccak(signature.encode())[:4]


def _in_code(code: bytes, signatures: Iterable[str]) -> list[str]:
    """Functions that the code dispatches to: PUSH4 and the selector."""
    return [name for name in signatures if b"\x63" + selector(name) in code]


async def _probe(chain: RpcChain, token: str, holder: str, facts: TokenFacts) -> None:
    held = await _read(chain, token, "balanceOf(address)", "uint256", ["address"], [holder])
    moved = held // 2
    if moved < LEAST_MOVED_UNITS:
        raise ConfigError(
            f"no transfer of {facts.symbol} can be tried",
            why=f"{holder} has {held} base units, and {2 * LEAST_MOVED_UNITS} are needed",
            next_step="name an account that has more: --holder ADDRESS. Nothing is taken from it",
        )
    call = selector("probe(address,address,uint256)") + encode(
        ["address", "address", "uint256"], [token, _NOBODY, moved]
    )
    there = {holder: {"code": artifact("TokenProbe")["deployedBytecode"]}}
    try:
        answer = await call_contract(chain, holder, call, there)
    except ContractRefused as error:
        raise CheckFailed(
            f"a transfer of {facts.symbol} does not work",
            why=f"moving {moved} base units of {holder} reverts: {error.error}",
            next_step="name another --holder, or another node if this one knows no state overrides",
        ) from None
    try:
        sent, received = decode(["uint256", "uint256"], answer)
    except DecodingError:
        raise ConfigError(
            f"no transfer of {facts.symbol} can be tried",
            why=f"{chain.rpc_url} does not take state overrides in eth_call",
            next_step="use a node that does: --rpc-url",
        ) from None
    if sent != 2 * moved or received != 2 * moved:
        raise CheckFailed(
            f"{facts.symbol} keeps a part of what it moves",
            why=f"of {2 * moved} base units {sent} left and {received} arrived",
            next_step="use a token without a fee: the escrow owes what it was told it received",
        )


async def _implementation(chain: RpcChain, token: str) -> str:
    """The code behind a proxy of the usual kind; empty where there is none."""
    for slot in (_IMPLEMENTATION, _BEACON):
        word = await chain.raw("eth_getStorageAt", token, slot, "latest")
        if any(word):
            return address(word[-20:])
    return ""


async def _read(
    chain: RpcChain,
    token: str,
    signature: str,
    kind: str,
    kinds: list[str] | None = None,
    values: list[Any] | None = None,
) -> Any:
    try:
        answer = await call_contract(
            chain, token, selector(signature) + encode(kinds or [], values or [])
        )
        return decode([kind], answer)[0]
    except (ContractRefused, DecodingError, UnicodeDecodeError):
        raise CheckFailed(
            f"{token} is no ERC-20 that can be used",
            why=f"it does not answer {signature} as one",
            next_step="look its address up on this chain",
        ) from None


async def call_contract(
    chain: RpcChain, to: str, data: bytes, there: dict[str, Any] | None = None
) -> bytes:
    """What a call returns, with other code at some addresses. Raises ContractRefused."""
    more = [there] if there else []
    asked = {"to": to, "data": "0x" + data.hex()}
    return await chain.raw("eth_call", asked, "latest", *more)
