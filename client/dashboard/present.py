"""How values look on a page: amounts, ages, ids as links. Filters of the templates, pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from markupsafe import Markup, escape

from core.protocol import ids
from core.protocol.errors import HeadraceError
from core.protocol.units import show_eth
from core.runtime.settings import Settings

DASH = "–"
#: Where a kind of thing has its page.
PAGES = {
    ids.Kind.JOB: "jobs",
    ids.Kind.RECEIPT: "receipts",
    ids.Kind.DISPUTE: "disputes",
    ids.Kind.MODEL: "models",
    ids.Kind.MINER: "miners",
}


def number(value: float | int | None, digits: int = 0) -> str:
    """12345.678 → `12,346`."""
    return DASH if value is None else f"{value:,.{digits}f}"


def compact(value: float | None) -> str:
    """1234567 → `1.23M`; small numbers keep what they have."""
    if value is None:
        return DASH
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """As people say it: `850 ms`, `12 s`, `3 min`, `5 h`, `9 days`."""
    if seconds is None:
        return DASH
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds < 1:
        return f"{abs(seconds) * 1000:.0f} ms"
    for unit, length, most in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172_800)):
        if seconds < most:
            value = seconds / length
            return f"{value:.1f} {unit}" if value < 10 and unit == "s" else f"{value:.0f} {unit}"
    days = seconds / 86400
    return f"{days:.0f} days" if days < 730 else f"{days / 365.25:,.0f} years"


def percent(share: float | None) -> str:
    """0.123 → `12 %`; what is not quite all is not said to be all, nor a little nothing."""
    if share is None:
        return DASH
    text = f"{share * 100:.0f}"
    if (text == "100" and share < 1) or (text == "0" and share > 0):
        text = f"{share * 100:.2f}"
        text = {"100.00": "99.99", "0.00": "0.01"}.get(text, text)
    return f"{text} %"


def size(count: int | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return DASH
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def id_link(kind: ids.Kind) -> Callable[[str | None], Markup]:
    """A filter that shows an id of this kind short and leads to its page."""

    def link(value: str | None) -> Markup:
        if not value:
            return Markup(DASH)
        try:
            text, whole = ids.short(kind, value), ids.full(kind, value)
        except HeadraceError:
            return escape(value)
        return Markup('<a class="id" href="/{}/{}" title="{}">{}</a>').format(
            PAGES[kind], whole, value, text
        )

    return link


def _hex_link(page: str, keep: int) -> Callable[[Any], Markup]:
    def link(value: Any) -> Markup:
        if value in (None, ""):
            return Markup(DASH)
        text = str(value)
        shown = text if len(text) <= keep + 7 else f"{text[:keep]}…{text[-4:]}"
        return Markup('<a class="id" href="/{}/{}" title="{}">{}</a>').format(
            page, text, text, shown
        )

    return link


def age(at_ms: int | None, now_ms: int) -> Markup:
    """When a number was true, as a time that the page keeps counting."""
    if not at_ms:
        return Markup('<span class="age">never</span>')
    seconds = max(0, now_ms - at_ms) / 1000
    text = "just now" if seconds < 1 else f"{duration(seconds)} ago"
    return Markup('<time class="age" data-at="{}">{}</time>').format(at_ms, text)


#: Rules of the contracts that are amounts of the token.
_AMOUNTS = ("bond", "fee", "minStake", "minJurorStake")


def rule(value: str, name: str, show_token: Callable[[int], str]) -> str:
    """What a contract was deployed with, with the unit that its name tells, if any."""
    if value.startswith("0x") and len(value) == 42:
        return _hex_link("addresses", 8)(value) if int(value, 16) else "nobody"
    if not value.isdecimal():
        return value
    count = int(value)
    if name in _AMOUNTS or name.endswith(("Bond", "Fee", "Stake")):
        return show_token(count)
    if name.endswith("Seconds"):
        return duration(count)
    if name.endswith("Bps"):
        return f"{count / 100:g} %"
    if name.endswith("Until"):
        return f"chain time {count}" if count else "never"
    return value


def filters(settings: Settings) -> dict[str, Callable[..., Any]]:
    """Every filter of the templates; money in this network's token."""

    def money(exact: str) -> Markup:
        shown = '<span class="money" title="{}">{}</span>'
        return Markup(shown).format(exact, settings.money(exact) or exact)

    def token(units: int | None) -> Markup:
        return Markup(DASH) if units is None else money(settings.show_token(units))

    def price(units_per_mtok: int | None) -> Markup:
        if units_per_mtok is None:
            return Markup(DASH)
        return money(settings.show_price(units_per_mtok))

    def gas(wei: int | None) -> str:
        return DASH if wei is None else show_eth(wei)

    return {
        "number": number,
        "duration": duration,
        "size": size,
        "percent": percent,
        "token": token,
        "price": price,
        "gas": gas,
        "rule": lambda value, name: rule(value, name, settings.show_token),
        "job": id_link(ids.Kind.JOB),
        "receipt": id_link(ids.Kind.RECEIPT),
        "dispute": id_link(ids.Kind.DISPUTE),
        "model": id_link(ids.Kind.MODEL),
        "miner": id_link(ids.Kind.MINER),
        "address": _hex_link("addresses", 8),
        "tx": _hex_link("transactions", 10),
        "block": _hex_link("blocks", 20),
    }
