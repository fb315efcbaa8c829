"""What must this machine earn, and does it? DeServe §3: it pays from M > C / P on."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from core.money import pricing
from core.money.break_even import (
    Earning,
    HourlyCost,
    break_even_tokens_per_s,
    profit_units_per_hour,
)
from core.protocol.errors import HeadraceError, UsageError
from core.runtime.settings import Settings
from miner.commands.bench import read_bench
from miner.commands.market import ask, model_id_of
from miner.commands.results import Bench, Market, PaperRow, Profit

HOURS_PER_DAY = 24
#: DeServe's machines: dollars an hour at 0.90 usd/Mtok, and the tokens per second that its table
#: prints.
PAPER_ROWS = (("0.35", 108), ("3.69", 1139), ("5.52", 1704), ("13.88", 4283))
PAPER_PRICE = "0.90"


@dataclass(frozen=True)
class Costs:
    """What a person says that a machine costs, as typed."""

    rent_per_hour: str | None = None
    power_watts: int = 0
    energy_price: str | None = None


async def quote(
    settings: Settings,
    costs: Costs,
    *,
    utilisation: float,
    prompt_ratio: float = 0.0,
    tokens_per_s: float | None = None,
) -> Profit:
    """The break-even rate of the configured prices, beside the measured one. Raises UsageError."""
    cost = hourly_cost(settings, costs)
    notes: list[str] = []
    bench = read_bench(settings)
    market, model, problem = await _market(settings)
    if problem:
        notes.append(problem)
    served, of = _share(bench, model)
    earning = Earning(
        price_in=settings.price(settings.miner.price_in),
        price_out=settings.price(settings.miner.price_out),
        prompt_tokens_per_answer_token=Fraction(prompt_ratio).limit_denominator(10_000),
        layer_units=served,
        of_layer_units=of,
        fee_bps=market.fee_bps if market else 0,
    )
    rate = break_even_tokens_per_s(cost, earning)
    measured = tokens_per_s
    if measured is None and bench is not None:
        measured = bench.batch_tokens_per_s
    if measured is None:
        notes.append("no rate is known: run `miner bench`, or say one with --tokens-per-s")
    profit = None
    if measured is not None:
        busy = Fraction(utilisation).limit_denominator(10_000)
        profit = profit_units_per_hour(cost, earning, Fraction(measured), busy) * HOURS_PER_DAY
    return Profit(
        cost_per_hour=settings.show_token(round(cost.units_per_hour)),
        price_in=settings.show_price(earning.price_in),
        price_out=settings.show_price(earning.price_out),
        share=f"{served} of {of} layer units",
        break_even_tokens_per_s=None if rate is None else round(float(rate), 3),
        measured_tokens_per_s=measured,
        utilisation=utilisation,
        profit_per_day=None if profit is None else settings.show_token(round(profit)),
        pays=None if profit is None else profit > 0,
        market=market,
        notes=notes,
    )


def paper_table(settings: Settings) -> list[PaperRow]:
    """DeServe's own four rows, computed."""
    symbol = settings.network.token_symbol
    price = settings.price(f"{PAPER_PRICE}{symbol}/Mtok")
    rows = []
    for typed, printed in PAPER_ROWS:
        units = settings.token(typed + symbol)
        rate = break_even_tokens_per_s(HourlyCost(units), Earning(0, price))
        assert rate is not None, "the price is above zero"
        rows.append(
            PaperRow(
                settings.show_token(units),
                settings.show_price(price),
                round(float(rate), 1),
                printed,
            )
        )
    return rows


def hourly_cost(settings: Settings, costs: Costs) -> HourlyCost:
    """C from what was typed. Raises UsageError for power without a price, AmountUnitMissing."""
    if costs.power_watts and costs.energy_price is None:
        raise UsageError(
            f"{costs.power_watts} W cost what?",
            "--power-watts needs --energy-price",
            next_step="add --energy-price, such as 0.30usd/kWh",
        )
    rent, energy = costs.rent_per_hour, costs.energy_price
    return HourlyCost(
        rent_units_per_hour=settings.token(_without(rent, "/h", "/hour")) if rent else 0,
        power_watts=costs.power_watts,
        energy_units_per_kwh=settings.token(_without(energy, "/kWh", "/kwh")) if energy else 0,
    )


def _without(text: str, *endings: str) -> str:
    for ending in endings:
        text = text.removesuffix(ending)
    return text


def _share(bench: Bench | None, model: dict[str, object] | None) -> tuple[int, int]:
    """Layer units that a machine like the measured one is paid for, of the model's."""
    if bench is None:
        return 1, 1
    first, last = (int(part) for part in bench.layers.split("-"))
    spec = model.get("spec") if model else None
    if not isinstance(spec, dict):
        return last - first + 1, bench.model_layers
    ends = (spec["embedUnits"] if first == 0 else 0) + (
        spec["headUnits"] if last + 1 == spec["layers"] else 0
    )
    return last - first + 1 + ends, pricing.model_units(spec)


async def _market(settings: Settings) -> tuple[Market | None, dict[str, object] | None, str]:
    if not settings.network.matcher_places:
        return None, None, "no matcher is configured, so the market is not known"
    try:
        status = await ask(settings, "/v1/status")
        models = (await ask(settings, "/v1/models"))["models"]
    except HeadraceError as error:
        return None, None, f"the market is not known: {error.what}"
    wanted = model_id_of(settings)
    model = next((m for m in models if m["modelId"].lower() == wanted), None)
    if model is None:
        return None, None, "nobody on this network has registered this model"
    low, high = model.get("lowestPrice"), model.get("highestPrice")
    return (
        Market(
            machines=model["machines"],
            lowest_out=low["priceOutShown"] if low else None,
            highest_out=high["priceOutShown"] if high else None,
            fee_bps=status.get("feeBps", 0),
        ),
        model,
        "",
    )


def quote_lines(found: Profit) -> list[tuple[str, str]]:
    """What a person reads."""
    rate, measured = found.break_even_tokens_per_s, found.measured_tokens_per_s
    lines = [
        ("cost", f"{found.cost_per_hour} an hour"),
        ("price", f"{found.price_in} in, {found.price_out} out; this machine holds {found.share}"),
        (
            "break-even",
            "never: a token brings nothing"
            if rate is None
            else f"{rate:,.1f} tokens/s, all day long",
        ),
    ]
    if measured is not None:
        verdict = "it pays" if found.pays else "it does not pay"
        lines += [
            (
                "this machine",
                f"{measured:,.1f} tokens/s when busy, {found.utilisation:.0%} of the time",
            ),
            ("per day", f"{found.profit_per_day}: {verdict}"),
        ]
    if found.market is not None:
        market = found.market
        lowest, highest = market.lowest_out or "no whole chain", market.highest_out or "–"
        prices = f"{lowest} out" if lowest == highest else f"{lowest} to {highest} out"
        lines.append(("market", f"{market.machines} machines, {prices}"))
    return [*lines, *(("note", note) for note in found.notes)]
