"""What does a request insist on beside its body? Our headers, as terms that bind the order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from client.gateway.errors import BadParameter
from client.orders import demands
from client.sessions.answering import AskTerms
from core.protocol import units
from core.protocol.errors import HeadraceError

if TYPE_CHECKING:
    from core.runtime.settings import Settings

#: A week. A request that says nothing has no more.
LONGEST_DEADLINE_S = 7 * 86400
HEADERS = ("x-max-price", "x-trusted-providers", "x-avoid-providers", "x-verify", "x-deadline")


def terms_of(
    headers: Mapping[str, str], settings: Settings, known: Collection[str] = ()
) -> AskTerms:
    """The terms that these headers ask for. Short ids may name `known` operators.

    `X-Max-Price` is one price for both directions or `IN,OUT`, such as `0.5usd/Mtok`; providers are
    addresses or ids by comma; `X-Verify` is none, sample, full or sample=0.05; `X-Deadline` is such
    as 30s, or seconds. Raises BadParameter.
    """
    said = {name: headers.get(name, "").strip() for name in HEADERS}
    cap_in, cap_out = _caps(said["x-max-price"], settings)
    ours = settings.client
    return AskTerms(
        cap_in=cap_in,
        cap_out=cap_out,
        trusted=_providers("x-trusted-providers", said, ours.trusted, known),
        avoided=_providers("x-avoid-providers", said, ours.avoid, known),
        deadline_s=_deadline(said["x-deadline"]),
        audit_bps=_audit_bps(said["x-verify"] or ours.verify, ours.verify),
    )


def terms_json(terms: AskTerms) -> dict[str, Any]:
    """As kept with a batch. Twin of `terms_from`."""
    return vars(terms) | {"trusted": sorted(terms.trusted), "avoided": sorted(terms.avoided)}


def terms_from(kept: Mapping[str, Any]) -> AskTerms:
    """Names that this version does not know are passed over: a later one may have kept them."""
    known = {field.name: kept[field.name] for field in fields(AskTerms) if field.name in kept}
    lists = {name: frozenset(kept[name]) for name in ("trusted", "avoided")}
    return AskTerms(**(known | lists))


def _caps(text: str, settings: Settings) -> tuple[int | None, int | None]:
    if not text:
        return None, None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 2:
        raise BadParameter("X-Max-Price", "it is one price, or one in and one out")
    try:
        prices = [settings.price(part) for part in parts]
    except HeadraceError as error:
        raise BadParameter("X-Max-Price", f"{error.what}; {error.why}; {error.next_step}") from None
    return prices[0], prices[-1]


def _providers(
    header: str, said: Mapping[str, str], default: Collection[str], known: Collection[str]
) -> frozenset[str]:
    names = said[header].split(",") if said[header] else default
    try:
        return demands.operators_of(names, known)
    except HeadraceError as error:
        raise BadParameter(header, f"{error.what}: {error.why}") from None


def _deadline(text: str) -> int | None:
    if not text:
        return None
    try:
        found = int(text) if text.isascii() and text.isdigit() else units.parse_duration(text)
    except HeadraceError as error:
        raise BadParameter("X-Deadline", f"{error.what}; {error.why}") from None
    if not 1 <= found <= LONGEST_DEADLINE_S:
        raise BadParameter("X-Deadline", "it must be from one second to seven days")
    return found


def _audit_bps(level: str, default: str) -> int:
    try:
        return demands.audit_bps(level, default)
    except HeadraceError as error:
        raise BadParameter("X-Verify", error.why) from None
