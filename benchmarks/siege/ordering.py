"""How does an attacker with a wallet open jobs? As honest requesters do, with the same matcher."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from benchmarks.siege.actor import Target
from client.context import Context, Model, open_context
from client.jobs.wishes import Choices, Wishes, terms_for, wishes_of, within_limits
from client.orders.matcher_api import MatcherApi
from client.orders.orders import Prompt, PromptBatch, make_order
from client.pipeline.pipeline import Match
from client.records.store import ClientStore
from client.wallet import ensure_deposit
from core.keys.signer import Signer
from core.money import pricing
from core.protocol import signing
from core.protocol.network_file import USD
from core.protocol.types import SamplingParams, SignedOrder
from core.runtime.network.channel import StreamIdentity
from core.runtime.settings import load
from devnet.accounts import signer_of
from tests.swarm.world import MODEL

#: Of wallets that have more than twice as much: an actor may come again.
DEPOSIT_UNITS = 40 * USD
DEADLINE_S = 30
PROMPT_TOKENS = 12


class Orders:
    """A wallet with a deposit, from which orders are signed."""

    def __init__(self, context: Context, signer: Signer, model: Model, wishes: Wishes) -> None:
        self._context, self._signer, self._model, self._wishes = context, signer, model, wishes
        self._matcher: MatcherApi = context.matcher()
        self._store: ClientStore = context.store()
        self.identity = StreamIdentity(signer, context.chain.domain)

    async def open(self, prompts: Sequence[Prompt]) -> tuple[Match, PromptBatch]:
        """Have an order matched and locked on chain. Raises what the matcher answers."""
        batch, model = PromptBatch.of(prompts), self._model
        tokens_in = sum(len(prompt.ids) for prompt in prompts)
        tokens_out = sum(prompt.sampling.max_new_tokens for prompt in prompts)
        quote = await self._matcher.quote(model.model_id, tokens_in, tokens_out)
        terms = terms_for(self._wishes, quote, await self._context.chain.now())
        account = self._signer.address
        nonce = self._store.next_nonce(account)
        order = make_order(batch, model.model_id, model.spec, terms, account, nonce)
        domain = self._context.chain.domain
        signed = SignedOrder(order, signing.sign(self._signer, domain, order))
        return await self._matcher.open_job(signed, domain), batch

    def cost_units(self, match: Match, tokens_in: int, tokens_out: int) -> int:
        """What so many tokens of a job cost, in base units."""
        order, units = match.signed.order, self._model.spec.layer_units
        return pricing.cost(units, tokens_in, tokens_out, order.price_in, order.price_out)


@asynccontextmanager
async def orders_of(target: Target, party: str) -> AsyncIterator[Orders]:
    """Orders of this party's wallet, with a deposit."""
    settings = load(environ={"HEADRACE_HOME": target.homes[party]})
    signer = signer_of(party)
    async with open_context(settings) as context:
        await ensure_deposit(context.chain, signer, DEPOSIT_UNITS, may_deposit=True)
        model = await context.model(MODEL)
        wishes = replace(wishes_of(settings, Choices()), deadline_s=DEADLINE_S)
        wishes = await within_limits(context, model, wishes, Choices())
        yield Orders(context, signer, model, wishes)


def prompts(count: int, new_tokens: int) -> list[Prompt]:
    """Prompts that nobody asked before, of answers with so many tokens."""
    sampling = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    return [
        Prompt(
            str(number),
            tuple(10 + byte for byte in os.urandom(PROMPT_TOKENS)),
            sampling,
            os.urandom(32),
        )
        for number in range(count)
    ]
