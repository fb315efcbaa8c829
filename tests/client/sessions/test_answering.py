"""A request's own terms go before the settings, and offers read as people write prices."""

from __future__ import annotations

from pathlib import Path

from client.context import Model
from client.orders.matcher_api import Quote
from client.sessions.answering import AskTerms, priced, wishes_with
from core.money import pricing
from core.runtime.folders import Folders
from core.runtime.settings import load
from tests.town.orders import MODEL_ID, SPEC, key


def test_a_request_that_insists_on_nothing_has_the_settings_wishes(tmp_path: Path) -> None:
    settings = load(
        flags={"client.price_cap_in": "2usd/Mtok"}, environ={}, folders=Folders.at(tmp_path)
    )
    assert wishes_with(settings, AskTerms()).cap_in == settings.price("2usd/Mtok")
    own = wishes_with(settings, AskTerms(cap_in=0, cap_out=5, deadline_s=7))
    assert (own.cap_in, own.cap_out, own.deadline_s) == (0, 5, 7)


def test_the_most_that_an_offer_can_cost_is_what_an_order_of_it_locks() -> None:
    quote = Quote(10**9, 2 * 10**9, [], key(40).address, 0, 7)
    offer = priced(Model("tiny", MODEL_ID, SPEC), quote, 100, 50)
    assert offer.most_units == pricing.cost(SPEC.layer_units, 100, 50, 10**9, 2 * 10**9) + 7
    assert offer.price_out == 2 * offer.price_in
