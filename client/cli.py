"""The `client` program: wallet, submissions, jobs, receipts, chat, gateway and offers."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from client.options import KeyOptions, MaxCost, OrderOptions, PriceCap, SamplingOptions
from core.models import commands as models_commands
from core.networks import commands as network_commands
from core.runtime.commands.cli import App, Run

if TYPE_CHECKING:
    from core.runtime.commands.results import Results

app = App("client", help="Buy inference from your own wallet and keep a receipt for every answer.")
wallet = app.group("wallet", help="Keys, and the prepaid balance.")
jobs = app.group("jobs", help="What you submitted and what came of it.")
orders = app.group("orders", help="Signed orders that no matcher answered: void, or taken back.")
receipts = app.group("receipts", help="What stages signed for your answers.")
models = app.group("models", models_commands.HELP, bare="offers")
models_commands.mount(models)
network_commands.mount(app.group("network", network_commands.HELP, bare="show"))
miners = app.group("miners", help="Who serves what now.")
keys = app.group("keys", help="Who may use your gateway, and within which limits.")

ModelOption = Annotated[str | None, Option(help="Model name or id.")]
FileArgument = Annotated[Path, Argument(help="Requests in the OpenAI batch format (JSONL).")]
JobArgument = Annotated[str, Argument(help="Job id or prefix.")]
OutOption = Annotated[Path | None, Option(help="Folder for results.")]
MaxTokens = Annotated[int, Option(help="Most new tokens per answer.", min=1, max=2**20)]


# --- wallet ---


@wallet.command("new")
def wallet_new(
    run: Run,
    name: Annotated[str, Argument(help="Name of the new wallet.")],
    phrase: Annotated[bool, Option("--phrase", help="Show a recovery phrase once.")] = False,
) -> None:
    """Make a wallet in the keystore folder, encrypted with a password."""
    from client.commands.wallet.wallets import create_wallet

    run.emit(create_wallet(run, name, with_phrase=phrase))


@wallet.command("import")
def wallet_import(
    run: Run,
    name: Annotated[str, Argument(help="Name under which to keep it.")],
    keystore: Annotated[Path | None, Option(help="A keystore file.")] = None,
    stdin: Annotated[bool, Option("--stdin", help="Read the key or phrase from stdin.")] = False,
) -> None:
    """Take in a key from a keystore file, stdin or a hidden prompt, never from the command line."""
    from client.commands.wallet.wallets import import_wallet

    run.emit(import_wallet(run, name, keystore=keystore, stdin=stdin))


@wallet.command("ls")
def wallet_ls(run: Run) -> None:
    """Wallets in the keystore folder."""
    from client.commands.wallet.wallets import list_wallets

    run.emit(list_wallets(run))


@wallet.command("show")
async def wallet_show(run: Run) -> None:
    """What the wallet holds, what is prepaid, locked and on its way out, and how long it lasts."""
    await _show_balances(run)


@app.command()
async def balance(run: Run) -> None:
    """The same as `wallet show`."""
    await _show_balances(run)


async def _show_balances(run: Run) -> None:
    from client.commands.wallet.balance import holdings
    from client.commands.wallet.wallets import wallet_address

    run.emit(await holdings(run.settings, wallet_address(run)))


@wallet.command("deposit")
async def wallet_deposit(run: Run, amount: Annotated[str, Argument(help="Such as 5usd.")]) -> None:
    """Move tokens from the wallet into the prepaid balance that orders draw on."""
    from client.context import open_context
    from client.wallet import Deposited, deposit

    units = run.settings.token(amount)
    signer = run.unlock()
    show = run.settings.show_token
    async with open_context(run.settings) as context:
        run.confirm(
            "Deposit it?",
            {
                "from": f"wallet {signer.address}",
                "to": f"prepaid balance in the escrow {context.chain.addresses['Escrow']}",
                "amount": show(units),
                "back": "`client wallet withdraw`, after a delay",
            },
        )
        await deposit(context.chain, signer, units)
        prepaid = await context.chain.read("Escrow", "balanceOf", signer.address)
    run.emit(Deposited(show(units), show(prepaid)))


@wallet.command("withdraw")
async def wallet_withdraw(
    run: Run,
    amount: Annotated[str | None, Argument(help="Such as 5usd; without it, complete.")] = None,
) -> None:
    """Ask for prepaid money back; call it again after the delay, without an amount, to get it."""
    from client.commands.wallet.withdraw import request_withdrawal, take_withdrawal
    from client.context import open_context

    signer = run.unlock()
    async with open_context(run.settings) as context:
        if amount is None:
            run.emit(await take_withdrawal(run, context.chain, signer))
        else:
            units = run.settings.token(amount)
            run.emit(await request_withdrawal(run, context.chain, signer, units))


@wallet.command("allow")
async def wallet_allow(
    run: Run,
    spender: Annotated[str, Argument(help="Name or address of the key that may spend.")],
    limit: Annotated[str, Argument(help="Most it may spend in all; 0usd takes it back.")],
    valid: Annotated[str, Option(help="How long, such as 30d.")] = "30d",
) -> None:
    """Let another key, such as a gateway's, pay for jobs from the prepaid balance, and no more."""
    from client.commands.wallet.allow import allow_spender

    run.emit(await allow_spender(run, spender, limit, valid))


# --- work ---


@app.command()
async def quote(
    run: Run,
    file: FileArgument,
    model: ModelOption = None,
    max_tokens: MaxTokens = 128,
    *,
    order: OrderOptions,
) -> None:
    """What a file would cost: tokens, price, route. Nothing is signed.

    What `submit` would refuse with the same options is refused here too: a cap that is passed, a
    deadline that is too long.
    """
    from client.commands.ask.submit import quote_file
    from client.jobs.wishes import Choices
    from core.protocol.types import SamplingParams

    choices = Choices(sampling=SamplingParams(max_new_tokens=max_tokens), **vars(order))
    await quote_file(run, file, model, choices)


@app.command()
async def submit(
    run: Run,
    file: FileArgument,
    model: ModelOption = None,
    max_tokens: MaxTokens = 128,
    *,
    order: OrderOptions,
    ack: Annotated[
        str, Option(help="now: pay at once; later: leave it to the dispute window.")
    ] = "now",
    name: Annotated[str, Option(help="What `client jobs` calls it.")] = "",
    wait: Annotated[
        bool,
        Option(
            "--wait/--detach", help="Stay to the end, or only until the order is open on chain."
        ),
    ] = True,
    on_chain: Annotated[
        bool, Option("--on-chain", help="Open the order on chain, for its matcher to see there.")
    ] = False,
    out: OutOption = None,
    text: Annotated[bool, Option("--text/--no-text", help="Show answers as they come.")] = True,
    sampling: SamplingOptions,
) -> None:
    """Run a file of requests: order, lock, stream, verify receipts, pay for what was delivered.

    How tokens are drawn can be said here for all lines, and in a line for that one.
    """
    from client.commands.ask.submit import submit_file
    from client.jobs.wishes import Choices

    choices = Choices(
        sampling=sampling.with_most(max_tokens),
        ack=ack,
        out=out,
        text=text,
        name=name,
        detach=not wait,
        on_chain=on_chain,
        **vars(order),
    )
    await submit_file(run, file, model, choices)


@app.command()
async def chat(
    run: Run,
    prompt: Annotated[str | None, Argument(help="One prompt; without it, a conversation.")] = None,
    model: ModelOption = None,
    system: Annotated[str | None, Option(help="System message.")] = None,
    max_tokens: MaxTokens = 256,
    *,
    sampling: SamplingOptions,
) -> None:
    """Talk to a model; the last line is cost, rate and receipt."""
    from client.commands.ask.chat import Conversation, converse

    await converse(run, prompt, model, Conversation(system, sampling.with_most(max_tokens)))


def _file_of(typed: str) -> Path | None:
    path = Path(typed)
    return path if path.is_file() else None


@jobs.command("ls")
async def jobs_ls(
    run: Run, watch: Annotated[bool, Option("--watch", help="Go on until Ctrl-C.")] = False
) -> None:
    """Your jobs, newest first."""
    import asyncio

    from client.commands.ask.job_list import list_jobs

    if watch:
        await run.follow(lambda: asyncio.to_thread(list_jobs, run.settings))
    run.emit(list_jobs(run.settings))


@jobs.command("show")
async def jobs_show(run: Run, job: JobArgument) -> None:
    """One job: its state on chain, its stages, its requests."""
    from client.commands.ask.job_list import show_job

    run.emit(await show_job(run.settings, job))


@jobs.command("logs")
async def jobs_logs(run: Run, job: JobArgument) -> None:
    """What happened to a job: its requests here, and its events on chain."""
    from client.commands.ask.job_follow import job_log, log_row

    found = await job_log(run.settings, job)
    run.emit(found if run.options.json else list(map(log_row, found)))


@jobs.command("wait")
async def jobs_wait(run: Run, job: JobArgument) -> None:
    """Wait until a job is paid, cancelled or expired; exit 8 when nothing was delivered in time."""
    from client.commands.ask.job_follow import wait_for_job

    run.emit(await wait_for_job(run, job))


@jobs.command("cancel")
async def jobs_cancel(run: Run, job: JobArgument) -> None:
    """End a job that runs here, or take back the lock of one that nobody took or paid in time."""
    from client.commands.ask.job_follow import cancel_job

    run.emit(await cancel_job(run, job))


@jobs.command("fetch")
def jobs_fetch(run: Run, job: JobArgument, out: OutOption = None) -> None:
    """Write a job's answers and receipts as files again, from the records here."""
    from client.commands.ask.job_follow import fetch_job

    run.emit(fetch_job(run, job, out))


@jobs.command("retry-failed")
async def jobs_retry_failed(
    run: Run,
    job: JobArgument,
    file: FileArgument,
    model: ModelOption = None,
    max_tokens: MaxTokens = 128,
    max_cost: MaxCost = None,
    price_cap: PriceCap = None,
    out: OutOption = None,
) -> None:
    """Submit those lines of a job's file once more that were not answered."""
    from client.commands.ask.submit import retry_failed
    from client.jobs.wishes import Choices
    from core.protocol.types import SamplingParams

    sampling = SamplingParams(max_new_tokens=max_tokens)
    choices = Choices(sampling=sampling, max_cost=max_cost, price_cap=price_cap, out=out)
    await retry_failed(run, job, file, model, choices)


@orders.command("ls")
async def orders_ls(run: Run) -> None:
    """Signed orders whose jobs are not known here, and whether a matcher may open them yet."""
    from client.commands.ask.orders import list_orders

    run.emit(await list_orders(run.settings))


@orders.command("revoke")
async def orders_revoke(
    run: Run, order: Annotated[str, Argument(help="Its id or prefix, or any nonce of yours.")]
) -> None:
    """Make an order void before a matcher opens it; costs gas, and locks nothing."""
    from client.commands.ask.orders import revoke_order

    run.emit(await revoke_order(run, order))


@orders.command("cancel")
async def orders_cancel(
    run: Run, order: Annotated[str, Argument(help="Its id or prefix.")]
) -> None:
    """Take back what an order locks on chain: at once without machines, else after its deadline."""
    from client.commands.ask.orders import cancel_order

    run.emit(await cancel_order(run, order))


@receipts.command("ls")
def receipts_ls(
    run: Run, job: Annotated[str | None, Argument(help="Only this job's.")] = None
) -> None:
    """Receipts you keep."""
    from client.commands.ask.job_list import list_receipts

    run.emit(list_receipts(run.settings, job))


@receipts.command("show")
def receipts_show(
    run: Run, receipt: Annotated[str, Argument(help="Receipt id or prefix.")]
) -> None:
    """Everything that one receipt says, and who signed it."""
    from client.commands.ask.receipts import show_receipt
    from core.protocol.units import format_moment
    from core.runtime.commands.results import plain

    found = show_receipt(run.settings, receipt)
    shown = plain(found) | {"signed_at": format_moment(found.signed_at)}
    run.emit(found if run.options.json else shown)


@receipts.command("verify")
async def receipts_verify(
    run: Run, job: Annotated[str, Argument(help="Job id or prefix, or a file of receipts.")]
) -> None:
    """Check a job's receipts, tokens and prices, or a file of receipts; exit 9 on a mismatch."""
    if (file := _file_of(job)) is not None:
        from client.commands.ask.receipts import verify_file

        run.emit(await verify_file(run.settings, file))
        return
    from client.commands.ask.job_list import verify_job

    run.emit(await verify_job(run.settings, job))


@receipts.command("delegate")
async def receipts_delegate(
    run: Run,
    job: JobArgument,
    auditor: Annotated[str, Argument(help="Address that may audit and dispute it for you.")],
    valid: Annotated[str, Option(help="How long, such as 24h.")] = "24h",
) -> None:
    """Sign a permission to audit and dispute a job, for `auditor check --delegation`."""
    from client.commands.ask.job_list import delegate

    run.emit(await delegate(run, job, auditor, valid))


# --- the gateway ---


@app.command(daemon=True)
async def serve(
    run: Run,
    host: Annotated[
        str | None, Option(help="Where to listen; other than loopback, only behind TLS.")
    ] = None,
    port: Annotated[int | None, Option(help="0 takes a free one.")] = None,
    budget: Annotated[
        str | None, Option(help="What all keys together may spend in a day: 5usd/day.")
    ] = None,
    db: Annotated[str | None, Option(help="SQLAlchemy URL of the database.")] = None,
    dashboard: Annotated[
        bool | None, Option("--dashboard/--no-dashboard", help="Also serve the pages.")
    ] = None,
) -> None:
    """An OpenAI-compatible endpoint that pays from your wallet; any OpenAI client works with it."""
    settings = run.load(
        {
            "gateway.host": host,
            "gateway.port": port,
            "gateway.daily_budget": budget.removesuffix("/day") if budget else None,
            "gateway.db_url": db,
            "gateway.dashboard": dashboard,
        }
    )
    if settings.log.level == "auto" and sys.stderr.isatty():
        run.set_up_logs("warning", settings.log.format)  # a person reads three lines, not the log
    from client.gateway.commands import serve

    await serve(run, settings)


@app.command()
async def pages(run: Run) -> None:
    """A new link to your gateway's pages; it opens them once, within ten minutes."""
    from client.gateway.commands import pages_link

    made = await pages_link(run)
    run.emit(made, human=made.pages)


@keys.command("new")
async def keys_new(
    run: Run,
    name: Annotated[str, Argument(help="Whose it is, such as alice or nightly-jobs.")],
    limits: KeyOptions,
) -> None:
    """Make an API key; it is shown once."""
    from client.gateway.commands import new_key

    run.emit(await new_key(run, name, limits))


@keys.command("set")
async def keys_set(
    run: Run,
    key: Annotated[str, Argument(help="Its id, a prefix of it, or its name.")],
    limits: KeyOptions,
) -> None:
    """Give a key other limits; what is not said stays, and none takes one away."""
    from client.gateway.commands import change_key

    run.emit(await change_key(run, key, limits))


@keys.command("usage")
async def keys_usage(
    run: Run,
    days: Annotated[int, Option(help="How many days, today included.", min=1, max=3660)] = 30,
    csv: Annotated[bool, Option("--csv", help="As a table for a spreadsheet.")] = False,
) -> None:
    """What each key used of each model, day by day."""
    from client.gateway.commands import key_use, use_csv

    lines = await key_use(run, days)
    run.emit(lines, human=use_csv(lines).rstrip() if csv else None)


@keys.command("ls")
async def keys_ls(run: Run) -> None:
    """Keys with their limits and what they spent."""
    from client.gateway.commands import list_keys

    columns = ("id", "name", "state", "budget", "spent", "today", "expires", "rate", "last_used")
    run.emit(await list_keys(run), columns=columns)


@keys.command("revoke")
async def keys_revoke(
    run: Run, key: Annotated[str, Argument(help="Its id, a prefix of it, or its name.")]
) -> None:
    """End a key now."""
    from client.gateway.commands import revoke_key

    run.emit(await revoke_key(run, key))


# --- the network ---


class Sort(StrEnum):
    """Which models come first."""

    PRICE = "price"
    SPEED = "speed"
    TRUST = "trust"


@models.command("offers")
async def models_offers(
    run: Run, sort: Annotated[Sort | None, Option(help="Which come first.")] = None
) -> None:
    """What is served now, at which price, how fast, and by how many."""
    from client.commands.ask.offers import list_models

    run.emit(await list_models(run.settings, sort.value if sort else None))


@models.command("publish")
async def models_publish(
    run: Run,
    source: Annotated[str, Argument(help="A folder, or PUBLISHER/REPOSITORY of a model hub.")],
    name: Annotated[str, Option(help="What it is called after your address; else its own.")] = "",
    revision: Annotated[str, Option(help="Of the repository: branch, tag or commit.")] = "main",
    licence: Annotated[str, Option(help="Else what its README states.")] = "",
    numerics: Annotated[str, Option(help="What machines compute it in.")] = "float32",
    at: Annotated[
        list[str] | None, Option(help="Where its files are: hf://, https:// or file://.")
    ] = None,
    jury: Annotated[bool, Option("--jury", help="Without a program: juries judge alone.")] = False,
) -> None:
    """Publish a model: hash it, promise its tolerances, register it, give it a name."""
    from client.commands.publish.publish import Wanted, publish

    places = tuple(at or ())
    wanted = Wanted(source, name, revision, licence, numerics, places, by_jury=jury)
    run.emit(await publish(run, wanted))


@models.command("share", daemon=True)
async def models_share(
    run: Run,
    folder: Annotated[Path, Argument(help="A published folder, or a model pulled as a whole.")],
    listen: Annotated[str, Option(help="HOST:PORT; port 0 takes a free one.")] = "127.0.0.1:0",
) -> None:
    """Serve a published model's files over HTTP until interrupted, for machines that pull them."""
    from client.commands.publish.share import SharedModel, host_and_port, sharing
    from core.runtime.http_server import STRANGERS, HttpServer

    application, files = sharing(folder)
    host, port = host_and_port(listen)
    async with HttpServer(application, host, port, limits=STRANGERS) as server:
        shared = SharedModel(str(folder), server.url + "/", files)
        run.emit(shared, human=f"sharing {files} files at {shared.url}")
        await server.wait()


@miners.command("ls")
async def miners_ls(run: Run) -> None:
    """Every machine that the matcher knows, with its layers and prices."""
    from client.commands.ask.offers import list_miners, miner_row

    found = await list_miners(run.settings)
    run.emit(found if run.options.json else [miner_row(miner) for miner in found])


@miners.command("show")
async def miners_show(
    run: Run, miner: Annotated[str, Argument(help="mnr_… or an operator's address.")]
) -> None:
    """One machine: what it says of itself, its stake, and what the chain holds against it."""
    from client.commands.ask.offers import miner_facts, show_miner

    found = await show_miner(run.settings, miner)
    run.emit(found if run.options.json else miner_facts(found))


@app.command()
async def dispute(
    run: Run,
    job: Annotated[str, Argument(help="Job or receipt: id or prefix.")],
    stage: Annotated[int | None, Option(help="The guilty stage; without it, found first.")] = None,
    wait: Annotated[bool, Option("--wait/--no-wait", help="Stay until the verdict.")] = True,
) -> None:
    """Accuse a stage that signed a wrong answer; the same as `auditor dispute` with this wallet."""
    from client.commands.judge.verdicts import dispute_job

    await dispute_job(run, job, stage, None, wait=wait)


@app.results
def _results() -> Results:
    """What each command prints with --json."""
    from client import wallet
    from client.commands.ask import chat as conversation
    from client.commands.ask import detach, job_follow, job_list, offers, receipts
    from client.commands.ask import orders as sent
    from client.commands.ask import submit as submitting
    from client.commands.judge import dispute_results
    from client.commands.publish import publish, share
    from client.commands.wallet import allow as spender
    from client.commands.wallet import balance as holdings
    from client.commands.wallet import wallets, withdraw
    from client.gateway import commands
    from client.jobs import wishes

    return {
        "wallet new": (wallets.WalletFile,),
        "wallet import": (wallets.WalletFile,),
        "wallet ls": (list[wallets.WalletFile],),
        "wallet show": (holdings.Balance,),
        "wallet deposit": (wallet.Deposited,),
        "wallet withdraw": (withdraw.Thawing, withdraw.Withdrawn),
        "wallet allow": (spender.Allowed,),
        "balance": (holdings.Balance,),
        "quote": (wishes.Offer,),
        "submit": (submitting.SubmittedJob, detach.Detached),
        "chat": (conversation.ChatAnswer,),
        "jobs ls": (list[job_list.JobLine],),
        "jobs show": (job_list.ShownJob,),
        "jobs logs": (list[job_follow.LogLine],),
        "jobs wait": (job_follow.Ended,),
        "jobs cancel": (job_follow.Ended,),
        "jobs fetch": (job_follow.Fetched,),
        "jobs retry-failed": (submitting.SubmittedJob,),
        "orders ls": (list[sent.SentOrder],),
        "orders revoke": (sent.Revoked,),
        "orders cancel": (job_follow.Ended,),
        "receipts ls": (list[job_list.ReceiptLine],),
        "receipts show": (receipts.ShownReceipt,),
        "receipts verify": (job_list.JobVerified, receipts.FileVerified),
        "receipts delegate": (job_list.Delegated,),
        "serve": (commands.Serving,),
        "pages": (commands.PagesLink,),
        "keys new": (commands.NewKey,),
        "keys ls": (list[commands.ShownKey],),
        "keys set": (commands.ShownKey,),
        "keys usage": (list[commands.KeyUse],),
        "keys revoke": (commands.ShownKey,),
        **models_commands.printed(),
        **network_commands.printed(),
        "models offers": (list[offers.ModelOffer],),
        "models publish": (publish.PublishedModel,),
        "models share": (share.SharedModel,),
        "miners ls": (list[offers.MinerOffer],),
        "miners show": (offers.Miner,),
        "dispute": (dispute_results.PlayedDispute, dispute_results.JuryDispute),
    }


main = app.main

if __name__ == "__main__":
    raise SystemExit(main())
