"""How are amounts written, read exactly, and priced?

Every amount carries its unit (``500usd``, ``0.40usd/Mtok``, ``5eth``, ``30s``, ``6GiB``); a bare
number is refused. Arithmetic is on integers and ``Decimal``; a value finer than the base unit is
refused, never rounded.

**Price.** People read and write ``usd/Mtok``: token base units per million tokens *through the
whole model*. The chain knows nano base units per token per layer unit (docs/protocol.md §1). With
U layer units in the model::

    nano  = ⌈ price · 1000 / U ⌉            price in base units per Mtok
    price = ⌊ nano · U / 1000 ⌋

Rounding on the way in is up, for the miner's price and the requester's cap alike, so that equal
printed prices always meet. The miner gains less than U/1000 base units per million tokens; a job's
own cap (``maxAmount``) is exact and never exceeded. For U ≤ 1000, ``price → nano → price`` returns
the price.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact, InvalidOperation
from typing import Final, NewType

from core.protocol.errors import AmountInvalid, AmountUnitMissing

TokenUnits = NewType("TokenUnits", int)
"""Base units of the network's one ERC-20."""
PricePerMtok = NewType("PricePerMtok", int)
"""Token base units per million tokens through the whole model."""
NanoPrice = NewType("NanoPrice", int)
"""Nano base units of the token per token per layer unit, as signed and as on chain."""

TOKEN_SYMBOL: Final = "usd"
TOKEN_DECIMALS: Final = 6
TOKENS_PER_MTOK: Final = 1_000_000
NANO: Final = 1_000_000_000
MAX_UINT64: Final = 2**64 - 1
MAX_UINT128: Final = 2**128 - 1

_ETH_UNITS: Final = {"eth": 10**18, "gwei": 10**9, "wei": 1}
_TIME_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE_UNITS: Final = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_AMOUNT = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z][A-Za-z0-9./-]*)?", re.ASCII)
_WRITTEN = re.compile(r"-?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_EXACT = Context(prec=200, rounding=ROUND_HALF_EVEN, traps=[Inexact, InvalidOperation])


def parse_token(
    text: str, *, symbol: str = TOKEN_SYMBOL, decimals: int = TOKEN_DECIMALS
) -> TokenUnits:
    """``500usd`` → 500_000_000 base units. Raises AmountUnitMissing, AmountInvalid."""
    return TokenUnits(_parse(text, {symbol: 10**decimals}, MAX_UINT128))


def format_token(units: int, *, symbol: str = TOKEN_SYMBOL, decimals: int = TOKEN_DECIMALS) -> str:
    """Exact, shortest: 500_000_000 → ``500usd``; reading it back gives the same integer."""
    return _format(units, 10**decimals) + symbol


def money_for_people(text: str, *, symbol: str = TOKEN_SYMBOL) -> str | None:
    """``1234.5usd`` → ``1,234.50 usd``, ``0.0079123usd/Mtok`` → ``0.0079 usd/Mtok``.

    Below a thousandth it stays exact. None where the text is no amount as we write amounts.
    """
    number, unit, per = text.partition(symbol)
    if not unit or per not in ("", "/Mtok") or not _WRITTEN.fullmatch(number):
        return None
    value = Decimal(number)
    if abs(value) >= 1:
        number = f"{value:,.2f}"
    elif abs(value) >= Decimal("0.001"):
        whole, _, rest = f"{value:.4f}".partition(".")
        number = f"{whole}.{rest.rstrip('0'):0<2}"
    return f"{number} {unit}{per}"


def show_eth(wei: int) -> str:
    """For people: ETH with six decimals, rounded down; exact below a millionth."""
    return format_eth(wei - wei % 10**12 if wei >= 10**12 else wei)


def format_eth(wei: int) -> str:
    """Exact, in the largest unit that needs at most nine decimals: ``5eth``, ``250gwei``."""
    for unit in ("eth", "gwei"):
        scale = _ETH_UNITS[unit]
        if abs(wei) * 1_000 >= scale and wei % max(1, scale // NANO) == 0:
            return _format(wei, scale) + unit
    return f"{wei}wei"


def parse_price(
    text: str, *, symbol: str = TOKEN_SYMBOL, decimals: int = TOKEN_DECIMALS
) -> PricePerMtok:
    """``0.40usd/Mtok`` → 400_000 base units per Mtok. Raises AmountUnitMissing, AmountInvalid."""
    return PricePerMtok(_parse(text, {f"{symbol}/Mtok": 10**decimals}, MAX_UINT64))


def format_price(price: int, *, symbol: str = TOKEN_SYMBOL, decimals: int = TOKEN_DECIMALS) -> str:
    """Exact: 400_000 → ``0.4usd/Mtok``."""
    return _format(price, 10**decimals) + f"{symbol}/Mtok"


def nano_price(price: int, layer_units: int) -> NanoPrice:
    """Base units per Mtok through the model → nano base units per token per layer unit, rounded up.

    Raises AmountInvalid if the result does not fit the uint64 of the order.
    """
    _check_layer_units(layer_units)
    if price < 0:
        raise AmountInvalid(f"price {price} is negative")
    nano = -(-price * (NANO // TOKENS_PER_MTOK) // layer_units)
    if nano > MAX_UINT64:
        raise AmountInvalid(
            f"price {price} base units per Mtok is too large",
            why=f"{nano} nano base units per token and layer unit exceed {MAX_UINT64}",
        )
    return NanoPrice(nano)


def price_of_nano(nano: int, layer_units: int) -> PricePerMtok:
    """Nano base units per token per layer unit → base units per Mtok, rounded down; for printing.

    Inverse of ``nano_price`` for up to 1000 layer units.
    """
    _check_layer_units(layer_units)
    return PricePerMtok(nano * layer_units // (NANO // TOKENS_PER_MTOK))


def covering_units(nano: int) -> int:
    """Whole base units that cover nano base units: rounded up."""
    return -(-nano // NANO)


def whole_units(nano: int) -> int:
    """Whole base units in nano base units: rounded down."""
    return nano // NANO


def parse_duration(text: str) -> int:
    """``30s``, ``10m``, ``24h``, ``7d`` → whole seconds. Raises as `parse_token`."""
    return _parse(text, _TIME_UNITS, MAX_UINT64)


def format_moment(seconds: int) -> str:
    """Seconds since 1970 → ``2026-11-22 09:30:00 UTC``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_duration(seconds: int) -> str:
    """Exact, in the largest unit that divides: 86400 → ``1d``, 90 → ``90s``."""
    return _in_largest(seconds, _TIME_UNITS, ("d", "h", "m", "s"))


def parse_bytes(text: str) -> int:
    """``6GiB`` (binary) or ``6GB`` (decimal) → bytes. Raises as `parse_token`."""
    return _parse(text, _SIZE_UNITS, MAX_UINT64)


def format_bytes(count: int) -> str:
    """Exact, in the largest binary unit that divides: 6·2³⁰ → ``6GiB``."""
    return _in_largest(count, _SIZE_UNITS, ("TiB", "GiB", "MiB", "KiB", "B"))


def _in_largest(count: int, scales: dict[str, int], units: tuple[str, ...]) -> str:
    unit = next((u for u in units if count and count % scales[u] == 0), units[-1])
    return f"{count // scales[unit]}{unit}"


def _check_layer_units(layer_units: int) -> None:
    if layer_units <= 0:
        raise ValueError(f"a model has at least one layer unit, not {layer_units}")


def _parse(text: str, scales: dict[str, int], maximum: int) -> int:
    accepted = tuple(scales)
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise AmountInvalid(
            f"'{text}' is not an amount",
            why="it is no plain decimal number followed by a unit, without sign or exponent",
            next_step="write it with one of: " + ", ".join(f"1{unit}" for unit in accepted),
            accepted=list(accepted),
        )
    number, unit = match.groups()
    if unit is None:
        raise AmountUnitMissing(text.strip(), accepted)
    if unit not in scales:
        close = next((name for name in accepted if name.lower() == unit.lower()), None)
        raise AmountInvalid(
            f"'{text}' has a unit that does not fit here",
            why=f"'{unit}' is not one of: {', '.join(accepted)}",
            next_step=f"write {number}{close or accepted[0]}, if that is what you mean",
            accepted=list(accepted),
        )
    if len(number) > 100:
        raise AmountInvalid("the amount has too many digits", why=f"{len(number)} digits")
    scaled = _EXACT.multiply(Decimal(number.replace("_", "")), Decimal(scales[unit]))
    value = int(scaled)
    if scaled != value:
        raise AmountInvalid(
            f"'{text}' is finer than the smallest unit",
            why=f"it is {scaled.normalize():f} base units, and base units cannot be divided",
            next_step=f"round it yourself, for example to {_format(value, scales[unit])}{unit}",
        )
    if value > maximum:
        raise AmountInvalid(f"'{text}' is too large", why=f"{value} exceeds the maximum {maximum}")
    return value


def _format(value: int, scale: int) -> str:
    sign = "-" if value < 0 else ""
    whole, rest = divmod(abs(value), scale)
    if rest == 0:
        return f"{sign}{whole}"
    digits = str(rest).rjust(len(str(scale)) - 1, "0").rstrip("0")
    return f"{sign}{whole}.{digits}"
