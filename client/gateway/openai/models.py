"""What can be asked for now, at which price, and how does its text become tokens?"""

from __future__ import annotations

import asyncio
import difflib
import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from client.context import Model, model_name
from client.gateway.openai.dialects import (
    AnswerParts,
    PlainParts,
    parts_of,
    texts_of,
    with_tools,
)
from client.gateway.openai.writing import Writer
from client.orders.sampling import SamplingInvalid, sampling_of
from core.engine.sampling.grammar import check_grammar, is_whole
from core.engine.sampling.stops import stop_strings
from core.protocol import signing, units
from core.protocol.errors import (
    ContextTooLong,
    GrammarInvalid,
    HeadraceError,
    ModelUnknown,
    UsageError,
)
from core.protocol.foreign import read_json_file
from core.protocol.types import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from client.context import Context
    from client.gateway.openai.fields import RequestBody
    from client.orders.matchers import Matchers
    from core.engine.weights.tokenizer import Tokenizer
    from core.runtime.clock import Clock

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_MOST_CONFIG_BYTES = 2**20
FRESH_S = 2.0  # a list of offers is shown again for so long
_NAMES = {
    signing.name_hash(name): name
    for name in ("float32", "float16", "bfloat16", "int8", "int4", "fp32", "bf16")
}


@dataclass(frozen=True)
class ServedModel:
    """A model that prompts can be made for."""

    model: Model
    tokenizer: Tokenizer

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def fingerprint(self) -> str:
        """Which weights computed how: while it stays, the same seed gives the same answer."""
        return fingerprint_of(self.model)

    def least_tokens(self, wanted: RequestBody) -> int:
        """How many tokens its longest prompt has at least, by its bytes; a message has one."""
        longest = self.tokenizer.longest_token_bytes
        if wanted.messages:
            size = sum(len(text.encode()) for text in texts_of(wanted.messages))
            return max(len(wanted.messages), math.ceil(size / longest))
        return max(
            len(prompt) if isinstance(prompt, tuple) else math.ceil(len(prompt.encode()) / longest)
            for prompt in wanted.prompts
        )

    def writer(self, wanted: RequestBody, name: str) -> Writer:
        """What writes the answer of this name to a request, for which it has made prompts."""
        sampling = wanted.sampling
        judged = partial(is_whole, sampling, tokenizer=self.tokenizer) if sampling.grammar else None
        return Writer(
            self.tokenizer,
            stop_strings(sampling),
            sampling.n_logprobs is not None,
            self._parts(wanted),
            name,
            judged,
        )

    def _parts(self, wanted: RequestBody) -> AnswerParts:
        if not wanted.messages:
            return PlainParts()
        is_formed = bool(wanted.sampling.grammar)
        return parts_of(self.tokenizer, self._prompt_end, wanted.tools, is_formed=is_formed)

    @cached_property
    def _prompt_end(self) -> str:
        """What the chat template puts between a prompt and its answer."""
        asked = [{"role": "user", "content": "?"}]
        try:
            return self.tokenizer.render_chat(asked).rpartition("?")[2]
        except UsageError:  # such as of a template that takes no such conversation
            return ""

    def sampling(self, wanted: RequestBody) -> SamplingParams:
        """How tokens are drawn: as the request says, else as the model's makers do."""
        unsaid = {name: v for name, v in self._defaults.items() if name not in wanted.said}
        return sampling_of(unsaid, wanted.sampling)

    @cached_property
    def _defaults(self) -> dict[str, float]:
        """What the model's `generation_config.json` says of fields that a request may set."""
        found = dict[str, float]()
        try:
            stated = read_json_file(
                self.tokenizer.model_dir / "generation_config.json", most_bytes=_MOST_CONFIG_BYTES
            )
        except (OSError, ValueError):
            return found
        for name in _DEFAULTS if isinstance(stated, dict) else ():
            if stated.get(name) is not None:
                with suppress(SamplingInvalid):  # what cannot be honoured is nobody's wish here
                    sampling_of({name: stated[name]}, SamplingParams())
                    found[name] = stated[name]
        return found

    def prompts(self, wanted: RequestBody) -> list[tuple[int, ...]]:
        """Token ids of each prompt. Raises ContextTooLong before that takes long, UsageError, also
        for a grammar that cannot be followed.
        """
        self.max_new_tokens(wanted, self.least_tokens(wanted), 1, is_counted=False)
        try:
            check_grammar(wanted.sampling, self.tokenizer)
        except GrammarInvalid as error:
            raise GrammarInvalid(error.why, param=wanted.form_param) from None
        if wanted.messages:
            self._parts(wanted)  # what it must read is read by then
            asked = with_tools(self.tokenizer, wanted.messages, wanted.tools)
            return [tuple(self.tokenizer.encode_chat(*asked))]
        found = []
        for prompt in wanted.prompts:
            given = isinstance(prompt, tuple)
            if given and max(prompt) >= self.model.spec.vocab:
                raise UsageError(
                    "the prompt holds a token id that the model does not have",
                    f"its vocabulary has {self.model.spec.vocab}",
                    param="prompt",
                )
            found.append(prompt if given else tuple(self.tokenizer.encode(str(prompt))))
        return found

    def max_new_tokens(
        self, wanted: RequestBody, prompt_tokens: int, default: int, *, is_counted: bool = True
    ) -> int:
        """How long an answer may be. Raises ContextTooLong, UsageError for an empty prompt."""
        context, asked = self.model.spec.context, wanted.sampling.max_new_tokens
        if not prompt_tokens:
            raise UsageError("the prompt is empty", "it has no tokens", param="prompt")
        if wanted.messages and not wanted.has_max_tokens:
            asked = max(1, min(default, context - prompt_tokens))
        if prompt_tokens + asked > context:
            error = ContextTooLong(
                prompt_tokens=prompt_tokens,
                max_new_tokens=asked,
                context_tokens=context,
                is_counted=is_counted,
            )
            error.details["param"] = "messages" if wanted.messages else "prompt"
            raise error
        return asked


@dataclass(frozen=True)
class OfferedModel:
    """A model and its market; prices in base units per million tokens, None: not served whole."""

    model: Model
    price_in: int | None
    price_out: int | None
    miners: int
    is_covered: bool


class Catalogue:
    """What the network file names, the chain has registered and the matcher sees."""

    def __init__(self, context: Context, matcher: Matchers, clock: Clock) -> None:
        self._context, self._matcher, self._clock = context, matcher, clock
        self._models: dict[str, Model] = {}
        self._served: dict[str, ServedModel] = {}
        self._loading = asyncio.Lock()
        self._offers: tuple[float, Sequence[OfferedModel]] = (float("-inf"), ())
        self._operators: tuple[float, Collection[str]] = (float("-inf"), ())

    async def find(self, name: str) -> ServedModel:
        """Raises ModelUnknown with the closest names, ModelMissing without its tokenizer here."""
        served = self._served.get(name)
        return served or await self._load(name)

    async def ls(self) -> Sequence[OfferedModel]:
        """All that are known, by name."""
        read_at, known = self._offers
        if self._clock.monotonic() - read_at > FRESH_S:
            known = await self._look()
            self._offers = self._clock.monotonic(), known
        return known

    async def operators(self) -> Collection[str]:
        """Addresses of the machines that are there."""
        read_at, known = self._operators
        if self._clock.monotonic() - read_at > FRESH_S:
            known = [str(miner.get("operator")) for miner in await self._matcher.miners()]
            self._operators = self._clock.monotonic(), known
        return known

    async def _load(self, name: str) -> ServedModel:
        async with self._loading:
            if name not in self._served:
                model = await self._model(name)
                folder = (await self._context.files_of(model)).folder
                self._served[name] = ServedModel(model, await asyncio.to_thread(_read, folder))
        return self._served[name]

    async def _model(self, name: str) -> Model:
        if name not in self._models:
            try:
                self._models[name] = await self._context.model(name)
            except ModelUnknown as error:
                raise unknown(name, self._context.settings.network.models) from error
        return self._models[name]

    async def _look(self) -> Sequence[OfferedModel]:
        found = []
        seen = {str(entry.get("modelId")): entry for entry in await self._matcher.models()}
        for name in sorted(self._context.settings.network.models):
            try:
                model = await self._model(name)
            except ModelUnknown:  # in the network file, not on the chain: nobody can serve it
                continue
            found.append(offer_of(model, seen.pop(model.model_id, {})))
        for model_id in seen:  # registered by others
            try:
                model = await self._model(model_name(model_id, self._context.settings) or model_id)
            except HeadraceError:
                continue
            found.append(offer_of(model, seen[model_id]))
        return found


def _read(folder: Path) -> Tokenizer:
    """The tokenizer, with what every request asks of it."""
    from core.engine.weights.tokenizer import Tokenizer

    tokenizer = Tokenizer(folder)
    _ = tokenizer.longest_token_bytes  # kept there, so that no request waits for it
    return tokenizer


def offer_of(model: Model, entry: dict[str, Any]) -> OfferedModel:
    """The matcher's words about a model."""
    price = entry.get("lowestPrice") or {}
    layer_units = model.spec.layer_units

    def shown(name: str) -> int | None:
        nano = price.get(name)
        return units.price_of_nano(nano, layer_units) if isinstance(nano, int) else None

    return OfferedModel(
        model,
        shown("priceIn"),
        shown("priceOut"),
        int(entry.get("serving") or 0),
        bool(entry.get("covered")),
    )


def unknown(name: str, known: Collection[str]) -> ModelUnknown:
    """There is no such model, but there are these."""
    name = name[:80]
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4) or sorted(known)[:5]
    return ModelUnknown(
        f"no model '{name}'",
        f"close to it: {', '.join(close)}" if close else "none is known",
        next_step="list them: GET /v1/models",
        param="model",
    )


def fingerprint_of(model: Model) -> str:
    profile = model.spec.numerics_profile
    return f"{model.spec.weights_root[2:14]}-{_NAMES.get(profile, profile[2:10])}"


def precision_of(model: Model) -> str:
    """How the weights are stored: float32, or the hash of a name that is not known here."""
    return _NAMES.get(model.spec.dtype, model.spec.dtype)


def alias_json(name: str, models: Sequence[str], created: int) -> dict[str, Any]:
    """An entry of `/v1/models` for a name that stands for the first of these that is served."""
    head = {"id": name, "object": "model", "created": created, "owned_by": "headrace"}
    return {**head, "alias_of": list(models)}


def offer_json(offer: OfferedModel, created: int, symbol: str, decimals: int) -> dict[str, Any]:
    """An entry of `/v1/models`: the standard fields, and what a model's name does not say."""

    def price(units_per_mtok: int | None) -> str | None:
        return None if units_per_mtok is None else str(units_per_mtok)

    def shown(units_per_mtok: int | None) -> str | None:
        if units_per_mtok is None:
            return None
        return units.format_price(units_per_mtok, symbol=symbol, decimals=decimals)

    spec = offer.model.spec
    return {
        "id": offer.model.name,
        "object": "model",
        "created": created,
        "owned_by": "headrace",
        "context_length": spec.context,
        "max_model_len": spec.context,
        "pricing": {
            "input_units_per_mtok": price(offer.price_in),
            "output_units_per_mtok": price(offer.price_out),
            "input": shown(offer.price_in),
            "output": shown(offer.price_out),
            "token": symbol,
            "decimals": decimals,
        },
        "miners": offer.miners,
        "available": offer.is_covered,
        "quantization": precision_of(offer.model),
        "weights_hash": spec.weights_root,
        "model_id": offer.model.model_id,
        "system_fingerprint": fingerprint_of(offer.model),
    }
