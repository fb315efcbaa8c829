"""An integer toy model behind the answerer's interface, deterministic and with faults on demand.

A token costs 20 base units to read and 80 to say. A prompt with `say:TEXT` is answered with TEXT;
any other with words that its ids, its seed and its choice decide. `fail-first` has no capacity,
`fail-at:N` breaks after N tokens, `forever` does not stop.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from client.context import Model
from client.gateway.batches.offline import Keep, LineAnswer
from client.gateway.money.ledger import Bill
from client.gateway.openai.models import OfferedModel, ServedModel, unknown
from client.orders.orders import Prompt
from client.pipeline.pipeline import Logprobs
from client.sessions.answering import Answered, Ask, AskTerms, PricedRequest, Said
from core.engine.sampling.grammar import grammar_of
from core.engine.sampling.stops import AnswerEnding
from core.engine.weights.tokenizer import Tokenizer
from core.protocol import signing
from core.protocol.errors import (
    CheckFailed,
    DepositShort,
    HeadraceError,
    NoCapacity,
    PeerUnreachable,
)
from core.protocol.types import ModelSpec, SamplingParams, Stage
from devnet.models.tiny_models import write_tiny_tokenizer

NAME, CONTEXT = "toy", 4096
PRICE_IN, PRICE_OUT = 20_000_000, 80_000_000  # base units per million tokens
IN_UNITS, OUT_UNITS = 20, 80
OPERATORS = tuple("0x" + f"{i:02x}" * 20 for i in (0xA1, 0xB2, 0xC3))
PLAN = tuple(Stage(operator, 4 * i, 4 * i + 4) for i, operator in enumerate(OPERATORS))
WORDS = ("the ", "ring ", "köln ", "水 ", "🚀", "and ", "naïve ", "🧑‍🚀 ", "of ", "layers. ")
EOS = 258


def spec() -> ModelSpec:
    def name(text: str) -> str:
        return signing.name_hash(text)

    hashes = map(name, ("float32", "fp32", "weights", "manifest"))
    return ModelSpec(name("llama"), 12, 64, 4, 2, 128, 272, CONTEXT, 1, 1, *hashes)


MODEL = Model(NAME, "0x" + "77" * 32, spec())


def tokenizer_in(folder: Path) -> Tokenizer:
    """A byte-level tokenizer: every byte is a token, so an emoji is four."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tiny_tokenizer(folder)
    return Tokenizer(folder)


class ToyCatalogue:
    """One model that three machines serve."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.served = ServedModel(MODEL, tokenizer)

    async def find(self, name: str) -> ServedModel:
        if name != NAME:
            raise unknown(name, [NAME])
        return self.served

    async def ls(self) -> Sequence[OfferedModel]:
        return [OfferedModel(MODEL, PRICE_IN, PRICE_OUT, 3, True)]

    async def operators(self) -> Collection[str]:
        return OPERATORS


class Bank:
    """What was paid, as the chain would say: lines of a file, which outlive any gateway."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def pay(self, name: str, units: int, answer: LineAnswer | None = None) -> None:
        """Once for each name."""
        if name not in self.paid:
            entry = {"name": name, "units": units, "answer": msgspec.to_builtins(answer)}
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(entry) + b"\n")

    @property
    def paid(self) -> dict[str, int]:
        return {entry["name"]: entry["units"] for entry in self._entries()}

    def answers(self, batch: str) -> list[tuple[int, LineAnswer]]:
        """Of a batch, each with what it cost."""
        return [
            (entry["units"], msgspec.convert(entry["answer"], LineAnswer))
            for entry in self._entries()
            if entry["name"].startswith(f"{batch}/")
        ]

    @property
    def total_units(self) -> int:
        return sum(self.paid.values())

    def _entries(self) -> list[dict[str, Any]]:
        whole, _, _ = self._file.read_bytes().rpartition(b"\n")  # another process may be writing
        return [msgspec.json.decode(line) for line in whole.splitlines()]


def cost(tokens_in: int, tokens_out: int) -> int:
    return tokens_in * IN_UNITS + tokens_out * OUT_UNITS


class ToyAnswerer:
    """Answers as fast as it is told to: `token_s` between tokens, `first_s` before the first."""

    def __init__(self, tokenizer: Tokenizer, bank: Bank) -> None:
        self._tokenizer, self.bank = tokenizer, bank
        self.token_s = 0.0
        self.first_s = 0.0
        self.have_units: int | None = None  # what the wallet holds
        self.asked: list[Ask] = []
        self.stopped_at: dict[str, float] = {}  # when miners were told to stop
        self.running = 0
        self._told: set[str] = set()

    async def price(
        self, model: Model, tokens_in: int, tokens_out: int, terms: AskTerms
    ) -> PricedRequest:
        return PricedRequest(PRICE_IN, PRICE_OUT, 0, cost(tokens_in, tokens_out), PLAN)

    async def answer(self, ask: Ask) -> AsyncGenerator[Said | Answered, None]:
        self.asked.append(ask)
        text = self._tokenizer.decode(ask.prompt.ids, keep_special=True)
        if "fail-first" in text:
            raise NoCapacity("no pipeline serves this model now", "every slot is taken")
        most = cost(len(ask.prompt.ids), ask.prompt.sampling.max_new_tokens)
        if self.have_units is not None and self.have_units < most:
            raise DepositShort(
                "the prepaid balance is too small",
                have=self.have_units,
                need=most,
                address="0x" + "01" * 20,
                fix="client wallet deposit 5usd",
            )
        fails_at = re.search(r"fail-at:(\d+)", text)
        said, finish = 0, ""
        self.running += 1
        try:
            await asyncio.sleep(self.first_s)
            for token, end in spoken(self._tokenizer, ask.prompt):
                if fails_at and said == int(fails_at[1]):
                    error = PeerUnreachable("a stage fell silent", "three pings in a row")
                    error.details["answered"] = self._end(ask, said, "")
                    raise error
                if said:
                    await asyncio.sleep(self.token_s)
                yield Said(said, token, told(ask.prompt.sampling, token))
                said += 1
                finish = end
            yield self._end(ask, said, finish)
        finally:
            self.running -= 1
            if not finish:
                self.stopped_at[ask.request_id] = time.monotonic()
                self._end(ask, said, "")

    async def recover(self) -> None: ...

    async def close(self) -> None: ...

    def _end(self, ask: Ask, said: int, finish: str) -> Answered:
        """Paid once, for what was said."""
        units = cost(len(ask.prompt.ids), said) if said else 0
        counts, place = (len(ask.prompt.ids), said), ("0x" + "11" * 32, len(self.asked))
        answered = Answered(*place, OPERATORS, *counts, finish, units, not finish)
        if ask.request_id not in self._told:
            self._told.add(ask.request_id)
            if said:
                self.bank.pay(ask.request_id, units)
            if ask.on_end is not None:
                ask.on_end(answered)
        return answered


class ToyOffline:
    """Runs batches line by line; waits after `stop_after` lines until `go_on` is set."""

    def __init__(self, tokenizer: Tokenizer, bank: Bank) -> None:
        self._tokenizer, self.bank = tokenizer, bank
        self.line_s = 0.0
        self.stop_after: int | None = None
        self.go_on = asyncio.Event()
        self.orders: list[int] = []  # lines of each
        self.refusals: list[HeadraceError] = []  # of the next orders
        self.cut: set[int] = set()  # lines of the next order that break off

    async def run(
        self,
        name: str,
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        terms: AskTerms,
        keep: Keep,
    ) -> dict[str, HeadraceError]:
        self.orders.append(len(prompts))
        if self.refusals:
            raise self.refusals.pop(0)
        failures: dict[str, HeadraceError] = {}
        for number, prompt in enumerate(prompts):
            if number == self.stop_after:
                await self.go_on.wait()
            await asyncio.sleep(self.line_s)
            if "fail-first" in tokenizer.decode(prompt.ids):
                failures[prompt.custom_id] = CheckFailed("a stage signed for other tokens", "twice")
                continue
            if number in self.cut:
                self.cut.remove(number)
                failures[prompt.custom_id] = PeerUnreachable("a stage fell silent", "for a while")
                continue
            pairs = list(spoken(tokenizer, prompt))
            tokens = tuple(token for token, _ in pairs)
            logprobs = tuple(told(prompt.sampling, t) for t in tokens)
            place = "0x" + "22" * 32, number, OPERATORS
            answer = LineAnswer(prompt.custom_id, tokens, logprobs, pairs[-1][1], *place)
            self.bank.pay(f"{name}/{prompt.custom_id}", cost(len(prompt.ids), len(tokens)), answer)
            keep(answer)
        return failures

    async def recover(
        self, name: str, model: Model, tokenizer: Tokenizer, keep: Keep, *, goes_on: bool = True
    ) -> None:
        for _, answer in self.bank.answers(name):
            keep(answer)

    async def bill(self, name: str, model: Model) -> Bill:
        known = self.bank.answers(name)
        units, tokens_out = sum(u for u, _ in known), sum(len(a.tokens) for _, a in known)
        return Bill(units, (units - tokens_out * OUT_UNITS) // IN_UNITS, tokens_out)


def told(sampling: SamplingParams, token: int) -> Logprobs | None:
    """A made-up logprob of each token, and of as many others as were asked for."""
    if sampling.n_logprobs is None:
        return None
    top = tuple(((token + i) % 256, -0.5 - i) for i in range(sampling.n_logprobs))
    return Logprobs(-0.5, top)


def spoken(tokenizer: Tokenizer, prompt: Prompt) -> Iterator[tuple[int, str]]:
    """Tokens of the answer, each with why it ends there, or "". What its grammar does not let come
    is replaced by another that may.
    """
    grammar = grammar_of(prompt.sampling, prompt.ids, tokenizer)
    ending = AnswerEnding(prompt.sampling, {EOS}, tokenizer, prompt.ids)
    banned = {token for token, bias in prompt.sampling.logit_bias if bias <= -100_000_000}
    for produced, said in enumerate(_stream(tokenizer, prompt)):
        token = said
        is_early = token == EOS and produced < prompt.sampling.min_new_tokens
        if token in banned or is_early:
            token = 32  # a space
        if grammar is not None:
            if not grammar.allows(token):
                may = np.flatnonzero(grammar.allowed())
                token = int(may[(produced * 7919 + said) % len(may)])
            grammar.take(token)
        finish = ending.push(token)
        yield token, finish
        if finish:
            return


def _stream(tokenizer: Tokenizer, prompt: Prompt) -> Iterator[int]:
    text = tokenizer.decode(prompt.ids, keep_special=True)
    given = re.findall(r"say:(.*?)(?:<\|im_end\|>|$)", text, re.DOTALL)
    if given:
        yield from tokenizer.encode(given[-1])
        while True:
            yield EOS
    sampling, state = prompt.sampling, 1
    for number in (
        *prompt.ids,
        *((sampling.seed, sampling.key_index or 0) if sampling.temperature_micro else ()),
    ):
        state = (state * 6364136223846793005 + number + 1442695040888963407) % 2**64
    words = 0
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield from tokenizer.encode(WORDS[(state >> 33) % len(WORDS)])
        words += 1
        if words >= 12 and "forever" not in text:
            yield EOS
