"""The `auditor` program: check a job, dispute it, sit on the jury."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from core.models import commands as models_commands
from core.networks import commands as network_commands
from core.runtime.commands.cli import App, Run

if TYPE_CHECKING:
    from core.runtime.commands.results import Results

app = App("auditor", help="Re-run what you doubt, and take a liar's stake on chain.")
jury = app.group("jury", help="Stake, and judge other people's disputes.")
disputes = app.group("disputes", help="Disputes on chain.")
audits = app.group("audits", help="What `auditor watch` has found.")
models_commands.mount(app.group("models", models_commands.HELP, bare="ls"))
network_commands.mount(app.group("network", network_commands.HELP, bare="show"))
canaries = app.group("canaries", help="Requests whose answer is known beforehand.")

JobArgument = Annotated[str, Argument(help="Job or receipt: id or prefix.")]
DelegationOption = Annotated[
    Path | None, Option("--delegation", help="Permission signed by the requester (JSON).")
]


DisputeArgument = Annotated[str, Argument(help="A dispute: id or prefix.")]


@app.command()
async def check(
    run: Run,
    job: JobArgument,
    delegation: DelegationOption = None,
    explain: Annotated[bool, Option("--explain", help="Also show each layer's deviation.")] = False,
    layers: Annotated[str | None, Option(help="Only stages that hold some of layers A:B.")] = None,
    tolerance: Annotated[
        float, Option(help="So many times the registered one, to look closer.", min=1e-6, max=1e6)
    ] = 1.0,
) -> None:
    """Re-run every stage of a job from its committed inputs; exit 9 when one lied."""
    from client.commands.judge.verdicts import CheckOptions, check_job

    await check_job(run, job, delegation, CheckOptions(layers, tolerance, explain))


@app.command()
async def replay(run: Run, job: JobArgument, delegation: DelegationOption = None) -> None:
    """Run the whole model over a job's tokens, believing no stage; exit 9 on a mismatch."""
    from client.commands.judge.replay import replay_job

    await replay_job(run, job, delegation)


@app.command()
async def dispute(
    run: Run,
    job: JobArgument,
    stage: Annotated[int | None, Option(help="The guilty stage; without it, found first.")] = None,
    wait: Annotated[
        bool, Option("--wait/--no-wait", help="Stay until the verdict, or only open it.")
    ] = True,
    delegation: DelegationOption = None,
) -> None:
    """Pay the bond, name the guilty stage on chain, and see the verdict."""
    from client.commands.judge.verdicts import dispute_job

    await dispute_job(run, job, stage, delegation, wait=wait)


@app.command()
async def convict(
    run: Run,
    job: Annotated[str, Argument(help="Job id or prefix, or a file of receipts.")],
    delegation: DelegationOption = None,
) -> None:
    """Take the stake of stages that their own signed words convict: no bond, no judge, one call.

    With a file of receipts anybody does so who holds two that contradict each other.
    """
    from client.commands.judge.convict import convict_by_file, convict_job

    if (file := Path(job)).is_file():
        await convict_by_file(run, file)
        return
    await convict_job(run, job, delegation)


@app.command()
async def bundle(
    run: Run,
    job: JobArgument,
    out: Annotated[Path, Option(help="File to write; it must not exist.")],
) -> None:
    """Write order, plan, receipts, prompts and answers in one file, for a third party to check."""
    from client.commands.judge.bundle import write_bundle

    run.emit(await write_bundle(run.settings, job, out))


@app.command()
def verify(run: Run, file: Annotated[Path, Argument(help="Made by `auditor bundle`.")]) -> None:
    """Check a bundle without network, wallet or model; exit 9 on a mismatch."""
    from client.commands.judge.bundle import verify_bundle

    run.emit(verify_bundle(file))


@app.command(daemon=True)
async def watch(
    run: Run,
    rate: Annotated[
        float, Option(help="Percent of requests to re-run, at least.", min=0.0, max=100.0)
    ] = 2.0,
    requester: Annotated[
        list[str] | None, Option(help="Whose orders we serve, beside those that name us.")
    ] = None,
    delegation: Annotated[
        list[Path] | None, Option(help="Permission signed by a requester (JSON).")
    ] = None,
    convict: Annotated[
        bool, Option("--convict", help="Convict stages by their own words, for gas alone.")
    ] = False,
    dispute: Annotated[
        bool, Option("--dispute", help="As --convict; also accuse stages, and pay the bond.")
    ] = False,
    max_bond: Annotated[
        str | None, Option(help="Most to lock for one dispute, such as 20usd.")
    ] = None,
    max_locked: Annotated[
        str | None, Option(help="Most that open disputes may hold together.")
    ] = None,
    tell: Annotated[
        bool, Option("--tell", help="Tell the matcher what audits of operators come to.")
    ] = False,
    paid_by_matcher: Annotated[
        bool,
        Option(
            "--paid-by-matcher", help="Also re-run what the matcher's lot falls on, for its fee."
        ),
    ] = False,
) -> None:
    """Follow jobs, re-run what the lot falls on, keep the verdicts. Until stopped.

    What a bond above a limit keeps from being accused is logged, and stays in `audits status`.
    """
    from client.commands.judge.watch_service import watch as serve
    from client.disputes.bonds import BondLimits
    from core.protocol.errors import UsageError

    token = run.settings.token
    bonds = BondLimits(
        *[None if typed is None else token(typed) for typed in (max_bond, max_locked)]
    )
    if not dispute and bonds != BondLimits():
        raise UsageError(
            "limits for bonds without --dispute",
            "no stage is accused, so nothing is locked",
            next_step="add --dispute",
        )
    await serve(
        run,
        rate_bps=round(100 * rate),
        serves=requester or (),
        delegation_files=delegation or (),
        convicts=convict or dispute,
        disputes=dispute,
        tells=tell,
        paid_by_matcher=paid_by_matcher,
        bonds=bonds,
    )


@audits.command("ls")
def audits_ls(run: Run) -> None:
    """What watching has found, newest first."""
    from client.commands.judge.watch_service import list_verdicts

    run.emit(list_verdicts(run.settings, run.unlock().address))


@audits.command("standings")
def audits_standings(run: Run) -> None:
    """Operators by what audits of them came to; whom to avoid."""
    from client.commands.judge.watch_service import list_standings

    run.emit(list_standings(run.settings, run.unlock().address))


@audits.command("tell")
async def audits_tell(run: Run) -> None:
    """Sign what audits came to, and hand it to the matcher, as `watch --tell` does by itself."""
    from client.commands.judge.watch_service import tell_by_hand

    run.emit(await tell_by_hand(run))


@audits.command("status")
def audits_status(run: Run) -> None:
    """Jobs watched, audits that were only measured, accusations that are due."""
    from client.commands.judge.watch_service import watch_status

    run.emit(watch_status(run.settings, run.unlock().address))


@disputes.command("ls")
async def disputes_ls(
    run: Run, watch: Annotated[bool, Option("--watch", help="Go on until Ctrl-C.")] = False
) -> None:
    """Every dispute, games and those before the jury, in the order in which they were opened."""
    from client.commands.judge.verdicts import list_disputes

    if watch:
        await run.follow(lambda: list_disputes(run.settings))
    run.emit(await list_disputes(run.settings))


@disputes.command("show")
async def disputes_show(
    run: Run,
    dispute: DisputeArgument,
    watch: Annotated[bool, Option("--watch", help="Go on until the verdict.")] = False,
) -> None:
    """A dispute: a game's moves, their cost and the number on trial, or how far the jury is."""
    from client.commands.judge.show_dispute import show_dispute, watch_dispute

    await (watch_dispute if watch else show_dispute)(run, dispute)


@disputes.command("move")
async def disputes_move(
    run: Run, dispute: DisputeArgument, delegation: DelegationOption = None
) -> None:
    """Make the one move of a game that is ours now; `auditor dispute` makes them all."""
    from client.commands.judge.move_dispute import move

    await move(run, dispute, delegation)


@disputes.command("resolve")
async def disputes_resolve(run: Run, dispute: DisputeArgument) -> None:
    """Move on a dispute whose clock has run out: the silent side loses, a verdict is executed."""
    from client.commands.judge.move_dispute import resolve

    await resolve(run, dispute)


@disputes.command("appeal")
async def disputes_appeal(run: Run, dispute: DisputeArgument) -> None:
    """Bring a jury's ruling before a larger panel: for challenger, requester, accused, operator."""
    from client.commands.judge.move_dispute import appeal

    await appeal(run, dispute)


@disputes.command("claim")
async def disputes_claim(run: Run, dispute: DisputeArgument) -> None:
    """Take what a dispute that is over owes this wallet: bond, reward, refund."""
    from client.commands.judge.move_dispute import claim

    await claim(run, dispute)


@app.command()
async def withdraw(run: Run) -> None:
    """Take what disputes and jobs owe this wallet: bonds, rewards, fees, its miner's pay."""
    from client.commands.wallet.credit import withdraw_credits

    run.emit(await withdraw_credits(run))


@canaries.command("mix")
def canaries_mix(
    run: Run,
    requests: Annotated[Path, Argument(help="Requests to mix them into (JSONL).")],
    asked: Annotated[Path, Argument(help="Earlier requests (JSONL).")],
    answered: Annotated[Path, Argument(help="Their results, of jobs that are clean.")],
    out: Annotated[Path, Option(help="File to write; it must not exist.")],
    count: Annotated[int, Option(help="How many.", min=1)] = 1,
) -> None:
    """Put requests with known answers among others, so that no stage can tell them apart."""
    from client.commands.judge.canaries import mix_files

    run.emit(mix_files(requests, [(asked, answered)], count, out))


@canaries.command("check")
def canaries_check(
    run: Run,
    secret: Annotated[Path, Argument(help="Written by `auditor canaries mix`.")],
    results: Annotated[Path, Argument(help="What came back (JSONL).")],
) -> None:
    """Compare what came back with what was known; exit 9 when a canary differs."""
    from client.commands.judge.canaries import check_files, suspicion

    rows = check_files(secret, results)
    run.emit(rows)
    if (error := suspicion(rows)) is not None:
        raise error


@jury.command("stake")
async def jury_stake(run: Run, amount: Annotated[str, Argument(help="Such as 100usd.")]) -> None:
    """Become eligible: lock stake that a false or missing vote costs."""
    from client.commands.judge.jury_stake import stake_juror

    run.emit(await stake_juror(run, amount))


@jury.command("serve", daemon=True)
async def jury_serve(run: Run) -> None:
    """Follow disputes; when drawn, re-run the shard, commit, reveal. Until stopped."""
    from client.commands.judge.jury_service import serve

    await serve(run)


@jury.command("status")
async def jury_status(run: Run) -> None:
    """Stake, open disputes, credit."""
    from client.commands.judge.jury_stake import juror_status

    run.emit(await juror_status(run))


@jury.command("withdraw")
async def jury_withdraw(
    run: Run,
    amount: Annotated[str | None, Argument(help="Such as 100usd; without it, complete.")] = None,
) -> None:
    """Take stake out (twice: ask, then receive) or, with nothing leaving, the credit earned."""
    from client.commands.judge.jury_stake import withdraw_juror

    run.emit(await withdraw_juror(run, amount))


@app.results
def _results() -> Results:
    """What each command prints with --json."""
    from client.audit import explain, investigation
    from client.commands.judge import (
        bundle,
        canaries,
        convict,
        dispute_results,
        jury_stake,
        replay,
        watch_service,
    )
    from client.commands.wallet import credit
    from client.disputes import game_record

    return {
        **models_commands.printed(),
        **network_commands.printed(),
        "canaries mix": (canaries.CanariesMixed,),
        "canaries check": (list[canaries.Canary],),
        "audits ls": (list[watch_service.Audited],),
        "audits standings": (list[watch_service.OperatorStanding],),
        "audits status": (watch_service.Watched,),
        "audits tell": (watch_service.ToldMatcher,),
        "bundle": (bundle.BundleWritten,),
        "verify": (bundle.BundleVerified,),
        "check": (list[investigation.StageChecked], list[explain.Layer]),
        "convict": (list[convict.Convicted],),
        "replay": (list[replay.ReplayRow],),
        "dispute": (dispute_results.PlayedDispute, dispute_results.JuryDispute),
        "disputes ls": (list[dispute_results.DisputeRow],),
        "disputes show": (
            list[game_record.ShownMove],
            list[dispute_results.DisputeRow],
            dict[str, str],
        ),
        "disputes move": (dispute_results.Moved,),
        "disputes resolve": (dispute_results.Moved,),
        "disputes appeal": (dispute_results.Appealed,),
        "disputes claim": (credit.CollectedCredit,),
        "withdraw": (credit.CollectedCredit,),
        "jury stake": (jury_stake.Juror,),
        "jury status": (jury_stake.Juror,),
        "jury withdraw": (jury_stake.Juror,),
    }


main = app.main

if __name__ == "__main__":
    raise SystemExit(main())
