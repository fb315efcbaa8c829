"""Which options do several of the client's commands have? A command takes a group as one parameter.

What is imported here is imported by `client --help`, so it is light.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

if TYPE_CHECKING:
    from core.protocol.types import SamplingParams

MaxCost = Annotated[str | None, Option(help="Most to lock, such as 0.50usd.")]
PriceCap = Annotated[str | None, Option(help="Highest price per token, such as 0.60usd/Mtok.")]


@dataclass(frozen=True)
class OrderOptions:
    """On which terms work is bought, as typed; None where the settings decide."""

    max_cost: MaxCost = None
    price_cap: PriceCap = None
    deadline: Annotated[str | None, Option(help="Time for the job, such as 30m.")] = None
    window: Annotated[str | None, Option(help="Time to dispute, such as 24h.")] = None
    auditor: Annotated[
        str | None,
        Option(
            help="May see your prompts and dispute for you: an address, matcher (whom it pays), "
            "or none."
        ),
    ] = None
    arbitrator: Annotated[
        str | None,
        Option(help="Who settles disputes: game, jury or an address; by default the game."),
    ] = None
    trusted: Annotated[
        list[str] | None,
        Option(help="Only this operator may serve (mnr_… or address); repeatable."),
    ] = None
    avoid: Annotated[
        list[str] | None, Option(help="This operator may not serve (mnr_… or address); repeatable.")
    ] = None
    verify: Annotated[
        str | None, Option(help="Share to be audited: none, sample, sample=0.05 or full.")
    ] = None
    replicas: Annotated[
        int | None,
        Option(help="Buy so many times on disjoint machines, and compare.", min=1, max=8),
    ] = None


@dataclass(frozen=True)
class KeyOptions:
    """What a gateway's key may do, as typed."""

    budget: Annotated[str | None, Option(help="Most it may spend: 5usd, or 5usd/day.")] = None
    expires: Annotated[
        str | None, Option(help="How long it is good for from now on, such as 30d.")
    ] = None
    models: Annotated[list[str] | None, Option(help="Only this model; repeatable.")] = None
    rate: Annotated[str | None, Option(help="Requests, such as 60/m or 2/s.")] = None
    token_rate: Annotated[str | None, Option(help="Tokens, such as 100000/m.")] = None
    tags: Annotated[list[str] | None, Option(help="A word to find it by; repeatable.")] = None


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn, as typed."""

    temperature: Annotated[
        float | None, Option(help="0 takes the likeliest token (the default).")
    ] = None
    top_k: Annotated[int | None, Option(help="Draw from the likeliest K tokens.")] = None
    top_p: Annotated[
        float | None, Option(help="Draw from the likeliest tokens that make up P.")
    ] = None
    min_p: Annotated[
        float | None, Option(help="Draw from tokens at least P times the likeliest's.")
    ] = None
    seed: Annotated[int | None, Option(help="The same seed draws the same answer.")] = None
    repetition_penalty: Annotated[
        float | None, Option(help="Divides what was said or asked; 1 is off.")
    ] = None
    frequency_penalty: Annotated[
        float | None, Option(help="Taken off for every time a token was said.")
    ] = None
    presence_penalty: Annotated[float | None, Option(help="Taken off once a token was said.")] = (
        None
    )
    logit_bias: Annotated[
        list[str] | None, Option(metavar="ID=BIAS", help="Make a token likelier; repeatable.")
    ] = None
    stop: Annotated[
        list[str] | None, Option(help="End the answer before this text; repeatable.")
    ] = None
    min_tokens: Annotated[int | None, Option(help="Fewest tokens before the model may end.")] = None
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="Go on to --max-tokens, whatever the model says.")
    ] = False
    logprobs: Annotated[
        int | None, Option(help="Tell each token's logprob and those of the N likeliest.")
    ] = None

    json_schema: Annotated[
        Path | None, Option(metavar="FILE", help="Answers are JSON that follows this schema.")
    ] = None

    def with_most(self, max_tokens: int) -> SamplingParams:
        """Parameters of an answer of at most so many tokens. Raises UsageError."""
        from client.orders.sampling import sampling_of_flags
        from core.protocol.types import SamplingParams

        flags = {"max_tokens": max_tokens, **asdict(self)}
        file = flags.pop("json_schema")
        if file is not None:
            flags["response_format"] = _schema_in(file)
        return sampling_of_flags(flags, SamplingParams())


def _schema_in(file: Path) -> dict[str, Any]:
    """The file's JSON schema as a request asks for it. Raises UsageError."""
    from core.protocol.errors import UsageError
    from core.protocol.foreign import read_json_file
    from core.protocol.types import MAX_GRAMMAR_BYTES

    try:
        schema = read_json_file(file, most_bytes=MAX_GRAMMAR_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {file}", error.strerror or str(error)) from None
    except ValueError as error:
        raise UsageError(f"{file} holds no JSON schema", str(error)) from None
    return {"type": "json_schema", "json_schema": {"schema": schema}}
