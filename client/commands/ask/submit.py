"""`client submit`, `quote` and `jobs retry-failed`: a file in, answers, receipts and costs out."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from client.commands.ask.job_follow import unanswered
from client.commands.ask.left import is_left, settle_left
from client.commands.ask.render import BatchView, printable
from client.context import Context, Model, open_context, open_store
from client.jobs.batch import (
    BatchResult,
    BatchWatcher,
    Policy,
    Requester,
    new_submission_id,
    run_batch,
)
from client.jobs.replicas import (
    AllowedMiners,
    AnswerDifference,
    Apart,
    Replica,
    quotes,
    run_replicas,
    suspicion,
)
from client.jobs.replicas import describe as describe_difference
from client.jobs.wishes import (
    Choices,
    Offer,
    Prepared,
    Wishes,
    check_caps,
    check_writable,
    describe,
    describe_auditor,
    ending_by,
    limits_of,
    maximum,
    prepare,
    read_file,
    terms_by,
    terms_elsewhere,
    wishes_of,
    within_limits,
    write_results,
)
from client.orders.demands import names_ids, operators_of
from client.orders.matcher_api import Quote
from client.orders.matchers import Matchers
from client.orders.orders import route_text
from client.records.keeper import Keeper, keepers_of
from client.wallet import Balances, balances
from core.engine.sampling.stops import stop_strings
from core.engine.weights.tokenizer import Tokenizer
from core.protocol import ids
from core.protocol.errors import ChainUnreachable, UsageError
from core.runtime.clock import SystemClock
from core.runtime.commands.console import StageProgress
from core.runtime.commands.results import Result, plain

if TYPE_CHECKING:
    from client.records.store import ClientStore
    from core.protocol.signing import DigestSigner
    from core.runtime.commands.console import Run
    from core.runtime.settings import Settings

MOST_REPLICAS = 8
LONGEST_NAME = 80
NOT_KNOWN = "not known"


class SubmittedJob(Result, frozen=True):
    """`submit` and `jobs retry-failed`. The last four are of several replicas."""

    jobs: list[str]
    job_ids: list[str]
    name: str
    finished: int
    failed: int
    tokens: int
    tokens_per_s: float
    paid: str
    still_locked: str
    spent: str
    prepaid: str
    results: str
    replicas: int | msgspec.UnsetType = msgspec.UNSET
    same: int | msgspec.UnsetType = msgspec.UNSET
    different: int | msgspec.UnsetType = msgspec.UNSET
    differences: str | msgspec.UnsetType | None = msgspec.UNSET


@dataclass(frozen=True)
class FileQuote:
    """What a file costs now: a price for each replica, on machines of its own."""

    model: Model
    tokenizer: Tokenizer
    prepared: Prepared
    wanted: AllowedMiners
    prices: list[Quote]

    @property
    def locked(self) -> int:
        """Base units that all replicas lock together."""
        return sum(maximum(self.model, price, self.prepared) for price in self.prices)


async def quote_file(run: Run, file: Path, model_name: str | None, choices: Choices) -> None:
    """Print what the file would cost now; then raise what `submit` would refuse it for."""
    settings, wishes = run.settings, wishes_of(run.settings, choices)
    good, bad = read_file(file, choices.sampling)
    async with open_context(settings) as context:
        quote = await _quote_file(run, context, model_name, choices, good, bad)
        run.emit(_offered(settings, quote, wishes))
        await _agree(context, quote, wishes, choices)


async def ask_price(context: Context, model: Model, prepared: Prepared) -> Quote:
    """The lowest price for this work, on machines that the settings allow. Raises NoCapacity."""
    (price,) = (await _prices(context, model, prepared, Choices(replicas=1)))[1]
    return price


async def submit_file(run: Run, file: Path, model_name: str | None, choices: Choices) -> None:
    """Run the file and report. Raises the first failure where a request could not be answered.

    Detached, another program does so, and this one ends as soon as that has its orders.
    """
    settings, wishes = run.settings, wishes_of(run.settings, choices)
    _check_name(choices.name)
    good, bad = read_file(file, choices.sampling)
    check_writable(choices.out or Path())
    password = run.password() if choices.detach else None
    signer = run.unlock(password=password)
    async with open_context(settings) as context:
        quote = await _quote_file(run, context, model_name, choices, good, bad)
        wishes = await _agree(context, quote, wishes, choices)
        _check_terms(quote, choices)
        shown = settings.show_token(quote.locked)
        wallet = {"wallet": f"{signer.address}; at most {shown} is locked"}
        run.confirm("Sign and lock it?", plain(_offered(settings, quote, wishes)) | wallet)
        if password is not None:
            from client.commands.ask.detach import go_on_alone

            run.emit(await go_on_alone(run, password, shown, len(quote.prices)))
            return
        await _Submitting(run, context, signer, quote, wishes, choices).to_the_end()


async def retry_failed(
    run: Run, typed: str, file: Path, model: str | None, choices: Choices
) -> None:
    """Submit the unanswered lines as a job of their own. Raises UsageError when there is none.

    What a killed program left of the job is paid first: answers that came are answers.
    """
    await _settle_left(run, typed)
    lines = unanswered(run.settings, typed, file)
    if not lines:
        raise UsageError(
            "there is nothing to run again",
            f"every line of {file} was answered",
            next_step=f"client jobs fetch {typed}",
        )
    run.note(f"{len(lines)} lines were not answered")
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as again:
        again.write(b"\n".join(lines) + b"\n")
        again.flush()
        await submit_file(run, Path(again.name), model, choices)


async def _settle_left(run: Run, typed: str) -> None:
    with closing(open_store(run.settings)) as store:
        row = store.find_job(typed)
        if not is_left(run.settings, store, row):
            return
        run.confirm("Pay for what came, then ask again?", {"job": typed, "its program": "is gone"})
        async with open_context(run.settings) as context:
            await settle_left(context, run.unlock(), store, row)


async def _agree(context: Context, quote: FileQuote, wishes: Wishes, choices: Choices) -> Wishes:
    """The wishes as this network takes them. Raises NoCapacity, UsageError where none fits."""
    settings, model = context.settings, quote.model
    wishes = await within_limits(context, model, wishes, choices)
    for offer in quote.prices:
        check_caps(settings, wishes, model.spec.layer_units, offer, quote.locked)
    return wishes


class _Submitting:
    """One file on its way, by as many replicas as were quoted for."""

    def __init__(
        self,
        run: Run,
        context: Context,
        signer: DigestSigner,
        quote: FileQuote,
        wishes: Wishes,
        choices: Choices,
    ) -> None:
        self._run, self._context, self._signer = run, context, signer
        self._quote, self._wishes, self._choices = quote, wishes, choices
        self._submission = new_submission_id()

    async def to_the_end(self) -> None:
        """Answer, pay, write files and the summary. Raises what failed, or differs."""
        run, settings, chain = self._run, self._context.settings, self._context.chain
        before = await balances(chain, self._signer.address)
        store, matcher = self._context.store(), self._context.matcher()
        keeper = Keeper(keepers_of(settings))
        store.add_submission(self._submission, self._choices.name, keeper.name)
        try:
            prompts = self._quote.prepared.prompts
            with run.stage(1, 1, "generating", total=len(prompts)) as stage:
                views = [self._view(number, stage) for number in range(len(self._quote.prices))]
                replicas, differing = await self._stream(store, matcher, views)
            results = [replica.result for replica in replicas if replica.result is not None]
            folder = self._choices.out or Path(
                ids.short(ids.Kind.JOB, results[0].matches[0].job_id)
            )
            self._write(folder, replicas, differing, store)
        finally:
            await matcher.close()
            store.close()
            keeper.close()
        after = await self._balances_after()
        summary = self._summary(folder, replicas, views, before, after)
        if len(views) > 1:
            compared = _compared(folder, results, differing)
            summary = msgspec.structs.replace(summary, **compared)
        (folder / "summary.json").write_text(json.dumps(plain(summary), indent=1) + "\n")
        run.emit(summary)
        if differing:
            raise suspicion(differing, str(folder / "differences.jsonl"))
        for replica in replicas:
            if replica.error is not None:
                raise replica.error
        for result in results:
            if result.unfinished:
                raise next(iter(result.unfinished.values()))

    async def _balances_after(self) -> Balances | None:
        """None where the chain does not answer: the answers are here, and paid, all the same."""
        try:
            return await balances(self._context.chain, self._signer.address)
        except ChainUnreachable as error:
            self._run.note(f"what is left is not known ({error.what}); ask `client balance` later")
            return None

    async def _stream(
        self, store: ClientStore, matcher: Matchers, views: Sequence[BatchWatcher]
    ) -> tuple[list[Replica], list[AnswerDifference]]:
        """Raises what kept the first order from being made, where no replica has one."""
        quote, prompts = self._quote, self._quote.prepared.prompts
        requester = Requester(
            self._context.chain,
            matcher,
            self._signer,
            store,
            SystemClock(),
            quote.model.model_id,
            quote.model.spec,
            ending_by(quote.tokenizer),
        )
        apart = Apart(quote.wanted, quote.prices)
        policies = [self._policy(matcher, apart, number) for number in range(len(views))]
        if len(views) == 1:
            done = await run_batch(requester, prompts, policies[0], views[0], self._submission)
            return [Replica(0, done)], []
        replicas, differing = await run_replicas(
            requester, prompts, policies, views, apart, self._submission
        )
        if all(replica.result is None for replica in replicas):
            assert replicas[0].error is not None
            raise replicas[0].error
        return replicas, differing

    def _policy(self, matcher: Matchers, apart: Apart, number: int) -> Policy:
        quote, wishes, settings = self._quote, self._wishes, self._context.settings
        # A replica may lock what the limit on all leaves it beside the others.
        others = quote.locked - maximum(quote.model, quote.prices[number], quote.prepared)
        own = replace(wishes, max_cost=wishes.max_cost - others)
        demands = partial(apart.demands, number)
        work = quote.model, quote.prepared
        return Policy(
            terms_of=terms_by(wishes, quote.prices[number], demands),
            elsewhere=terms_elsewhere(settings, matcher, work, own, demands),
            limits=limits_of(settings),
            acknowledge=wishes.acknowledge,
            registers=self._choices.on_chain,
        )

    def _view(self, number: int, stage: StageProgress) -> BatchView:
        """The first replica is shown as it streams, of the others only what they cost."""
        run, prompts = self._run, self._quote.prepared.prompts
        is_shown = self._choices.text and not run.options.quiet and not number
        view = BatchView(
            run,
            self._quote.tokenizer,
            self._context.settings.show_token,
            stage if not number else StageProgress("", None, "", lambda line: None),
            stream_text=is_shown,
            label=f"replica {number + 1}  " if len(self._quote.prices) > 1 else "",
        )
        view.stop_at({p.custom_id: stop_strings(p.sampling) for p in prompts})
        return view

    def _write(
        self,
        folder: Path,
        replicas: Sequence[Replica],
        differing: Sequence[AnswerDifference],
        store: ClientStore,
    ) -> None:
        """The first replica's answers, others in folders of their own, and what differs."""
        quote, is_first = self._quote, True
        for replica in replicas:
            if replica.result is not None:
                into = folder if is_first else folder / f"replica-{replica.number + 1}"
                write_results(
                    into, replica.result, quote.prepared, quote.tokenizer, quote.model.name
                )
                is_first = False
        if differing:
            lines = [describe_difference(one, store, quote.tokenizer) for one in differing]
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (folder / "differences.jsonl").write_text(text, encoding="utf-8")

    def _summary(
        self,
        folder: Path,
        replicas: Sequence[Replica],
        views: Sequence[BatchView],
        before: Balances,
        after: Balances | None,
    ) -> SubmittedJob:
        show, first = self._context.settings.show_token, views[0]
        results = [replica.result for replica in replicas if replica.result is not None]
        matches = [match for result in results for match in result.matches]
        paid = sum(view.paid_units for view in views)
        locked = spent = prepaid = NOT_KNOWN
        if after is not None:
            gone = before.wallet + before.deposited - after.wallet - after.deposited
            locked, spent, prepaid = show(max(0, gone - paid)), show(gone), show(after.deposited)
        return SubmittedJob(
            jobs=[ids.short(ids.Kind.JOB, m.job_id) for m in matches],
            job_ids=[ids.full(ids.Kind.JOB, m.job_id) for m in matches],
            name=self._choices.name,
            finished=len(results[0].finished),
            failed=len(results[0].unfinished) + len(self._quote.prepared.rejected),
            tokens=first.tokens,
            tokens_per_s=round(first.tokens_per_s, 2),
            paid=show(paid),
            still_locked=locked,
            spent=spent,
            prepaid=prepaid,
            results=str(folder / "output.jsonl"),
        )


def _compared(
    folder: Path, results: Sequence[BatchResult], differing: Sequence[AnswerDifference]
) -> dict[str, Any]:
    """What the summary of several replicas says beside."""
    in_all = set.intersection(*(set(result.finished) for result in results))
    different = {one.custom_id for one in differing}
    return {
        "replicas": len(results),
        "same": len(in_all - different),
        "different": len(different),
        "differences": str(folder / "differences.jsonl") if different else None,
    }


async def _quote_file(
    run: Run,
    context: Context,
    model_name: str | None,
    choices: Choices,
    good: list[Any],
    bad: list[Any],
) -> FileQuote:
    """The file as prompts, and its price. Raises ModelUnknown, UsageError, NoCapacity."""
    settings = run.settings
    model = await context.model(model_name or settings.client.model)
    tokenizer = Tokenizer((await context.files_of(model)).folder)
    prepared = prepare(good, bad, tokenizer, model.spec.context)
    _tell_rejected(run, prepared)
    wanted, prices = await _prices(context, model, prepared, choices)
    return FileQuote(model, tokenizer, prepared, wanted, prices)


async def _prices(
    context: Context, model: Model, prepared: Prepared, choices: Choices
) -> tuple[AllowedMiners, list[Quote]]:
    ours = context.settings.client
    replicas = choices.replicas or ours.replicas
    if not 1 <= replicas <= MOST_REPLICAS:
        raise UsageError(f"{replicas} replicas", f"there may be 1 to {MOST_REPLICAS}")
    api = context.matcher()
    try:
        wanted = await _wanted(context.settings, api, choices)
        tokens = prepared.tokens_in, prepared.max_tokens_out
        return wanted, await quotes(api, model.model_id, tokens, wanted, replicas)
    finally:
        await api.close()


async def _wanted(settings: Settings, api: Matchers, choices: Choices) -> AllowedMiners:
    """Who may serve, by flags and settings. Raises IdInvalid, UsageError."""
    trusted = choices.trusted or settings.client.trusted
    avoided = (*(choices.avoid or ()), *settings.client.avoid)
    known: list[str] = []
    if names_ids((*trusted, *avoided)):
        known = [str(miner.get("operator")) for miner in await api.miners()]
    return AllowedMiners(
        limits_of(settings).in_flight,
        operators_of(trusted, known),
        operators_of(avoided, known),
        wishes_of(settings, choices).audit_bps,
    )


def _offered(settings: Settings, quote: FileQuote, wishes: Wishes) -> Offer:
    """The offer as people read it."""
    prices, wanted, more = quote.prices, quote.wanted, dict[str, str]()
    if len(prices) > 1:
        more["replicas"] = f"{len(prices)}, at most {settings.show_token(quote.locked)} in all"
        more["other_routes"] = "; ".join(route_text(price.plan) for price in prices[1:])
    if wanted.audit_bps:
        more["audited"] = f"{wanted.audit_bps / 100:g} % of the requests"
    auditors = dict.fromkeys(describe_auditor(settings, wishes, price) for price in prices)
    if any(auditors):
        more["auditor"] = " and ".join(auditors)
    offer = describe(settings, quote.model, prices[0], quote.prepared)
    return msgspec.structs.replace(offer, **more)


def _check_terms(quote: FileQuote, choices: Choices) -> None:
    """Raise UsageError for an order on chain with terms: they do not travel with it."""
    if choices.on_chain and (len(quote.prices) > 1 or quote.wanted.demands() is not None):
        raise UsageError(
            "an order that is opened on chain has no terms",
            "which machines may serve it does not travel with it, nor what is audited",
            next_step="leave out --trusted, --avoid, --verify and --replicas, or --on-chain",
        )


def _check_name(name: str) -> None:
    if len(name) > LONGEST_NAME or not name.isprintable() or name.startswith("-"):
        raise UsageError(
            f"a job cannot be called {name[:LONGEST_NAME]!r}",
            f"a name has at most {LONGEST_NAME} printable characters and begins with no dash",
        )


def _tell_rejected(run: Run, prepared: Prepared) -> None:
    from rich.markup import escape

    for name, error in prepared.rejected:
        run.note(escape(printable(f"skipped  {name}: {error.what}: {error.why}")))
