"""From how many tokens a second on does a machine earn its keep? DeServe §3: M > C / P.

M is throughput in tokens per hour, C what the machine costs per hour, P what a token brings.
Everything is an exact rational of base units; nothing is rounded before it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from core.money.pricing import BPS
from core.protocol.units import TOKENS_PER_MTOK

SECONDS_PER_HOUR = 3600
WATTS_PER_KW = 1000


@dataclass(frozen=True)
class HourlyCost:
    """C: what a machine costs its owner, in base units of the token."""

    rent_units_per_hour: int = 0
    power_watts: int = 0
    energy_units_per_kwh: int = 0

    @property
    def units_per_hour(self) -> Fraction:
        energy = Fraction(self.power_watts * self.energy_units_per_kwh, WATTS_PER_KW)
        return self.rent_units_per_hour + energy


@dataclass(frozen=True)
class Earning:
    """P: what one produced token brings to a machine.

    Prices are base units per Mtok through the whole model. `prompt_tokens_per_answer_token` comes
    with every produced token. `layer_units` of the model's `of_layer_units` are served here; fees
    come off.
    """

    price_in: int
    price_out: int
    prompt_tokens_per_answer_token: Fraction = Fraction(0)
    layer_units: int = 1
    of_layer_units: int = 1
    fee_bps: int = 0

    @property
    def units_per_token(self) -> Fraction:
        through_model = self.price_out + self.price_in * self.prompt_tokens_per_answer_token
        share = Fraction(self.layer_units, self.of_layer_units)
        kept = Fraction(BPS - self.fee_bps, BPS)
        return Fraction(through_model) * share * kept / TOKENS_PER_MTOK


def break_even_tokens_per_s(cost: HourlyCost, earning: Earning) -> Fraction | None:
    """C / P as produced tokens a second; None when tokens bring nothing."""
    per_token = earning.units_per_token
    if per_token <= 0:
        return None
    return cost.units_per_hour / per_token / SECONDS_PER_HOUR


def profit_units_per_hour(
    cost: HourlyCost, earning: Earning, tokens_per_s: Fraction, utilisation: Fraction = Fraction(1)
) -> Fraction:
    """M·P − C at this rate, busy for this share of the time; below zero it is a loss."""
    income = tokens_per_s * utilisation * SECONDS_PER_HOUR * earning.units_per_token
    return income - cost.units_per_hour
