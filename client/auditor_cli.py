"""The `auditor` program: check a job, dispute it, sit on the jury."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from core.runtime.cli import App, Run

app = App("auditor", help="Re-run what you doubt, and take a liar's stake on chain.")
jury = app.group("jury", help="Stake, and judge other people's disputes.")
disputes = app.group("disputes", help="Disputes on chain.")

JobArgument = Annotated[str, typer.Argument(help="Job or receipt: id or prefix.")]
DelegationOption = Annotated[
    Path | None, typer.Option("--delegation", help="Permission signed by the requester (JSON).")
]


@app.command()
async def check(
    run: Run,
    job: JobArgument,
    delegation: DelegationOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show each layer's deviation.")
    ] = False,
) -> None:
    """Re-run every stage of a job from its committed inputs; exit 9 when one lied."""
    from client.verdicts import check_job

    await check_job(run, job, delegation, explain=explain)


@app.command()
async def dispute(
    run: Run,
    job: JobArgument,
    stage: Annotated[
        int | None, typer.Option(help="The guilty stage; without it, found first.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until the verdict.")] = True,
    delegation: DelegationOption = None,
) -> None:
    """Pay the bond, name the guilty stage on chain, and see the verdict."""
    from client.verdicts import dispute_job

    await dispute_job(run, job, stage, delegation, wait=wait)


@disputes.command("ls")
async def disputes_ls(run: Run) -> None:
    """Every dispute before the jury."""
    from client.verdicts import list_disputes

    run.emit(await list_disputes(run.settings))


@jury.command("stake")
async def jury_stake(
    run: Run, amount: Annotated[str, typer.Argument(help="Such as 100usd.")]
) -> None:
    """Become eligible: lock stake that a false or missing vote costs."""
    from client.jury_stake import stake_juror

    run.emit(await stake_juror(run, amount))


@jury.command("serve", daemon=True)
async def jury_serve(run: Run) -> None:
    """Follow disputes; when drawn, re-run the shard, commit, reveal. Until stopped."""
    from client.jury_service import serve

    await serve(run)


@jury.command("status")
async def jury_status(run: Run) -> None:
    """Stake, open disputes, credit."""
    from client.jury_stake import juror_status

    run.emit(await juror_status(run))


@jury.command("withdraw")
async def jury_withdraw(
    run: Run,
    amount: Annotated[
        str | None, typer.Argument(help="Such as 100usd; without it, complete.")
    ] = None,
) -> None:
    """Take stake out (twice: ask, then receive) or, with nothing leaving, the credit earned."""
    from client.jury_stake import withdraw_juror

    run.emit(await withdraw_juror(run, amount))


main = app.main

if __name__ == "__main__":
    raise SystemExit(main())
