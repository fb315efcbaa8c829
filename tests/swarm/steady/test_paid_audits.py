"""An auditor that the matcher pays is drawn, heard and paid, once, when an order names it."""

from __future__ import annotations

import os
import signal
from typing import Any

from client.watch.watch_book import AuditEnd
from core.protocol.types import ZERO_ADDRESS, JobState
from core.protocol.units import NANO
from devnet.ledger import changes
from tests.swarm.world import MARKS, WITHIN_S, World, prompt, until

pytestmark = MARKS
LINES = [prompt(f"a{i}", text, 8) for i, text in enumerate(("Name a river.", "Count to ten."))]
FEE_NANO = 10_000 * NANO  # the default of matcher.audit_fee, one cent


async def audits(world: World, *options: str) -> Any:
    return (await world.run("matcher-1", "matcher", "audits", *options, "--json")).result


async def test_requests_of_an_order_that_names_the_matchers_auditor_are_audited_and_paid(
    world: World,
) -> None:
    auditor = world.net.addresses["auditor-1"]
    file = world.requests("audited", LINES)
    silent = await world.run("requester-1", "client", "quote", str(file), "--json")
    assert silent.result["auditor"].startswith(f"nobody; with --auditor matcher {auditor}")
    unseen, _ = await world.submit(file)
    seen, _ = await world.submit(file, "--auditor", "matcher")
    (job_unseen,), (job,) = await world.jobs_of(unseen.result), await world.jobs_of(seen.result)
    assert (job_unseen.order.auditor, job.order.auditor) == (ZERO_ADDRESS, auditor)
    await world.ended(job.job_id, JobState.SETTLED)

    watching = await world.begin(
        "auditor-1", "auditor", "watch", "--rate", "0", "--paid-by-matcher"
    )

    async def owed() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await audits(world, "ls")
        return rows if [row["state"] for row in rows] == ["owed", "owed"] else []

    rows = await until(owed, within_s=WITHIN_S, what="both requests are answered for", poll_s=1.0)
    assert [(row["job"], row["request"]) for row in rows] == [
        (seen.result["jobs"][0], r) for r in (0, 1)
    ]
    assert {row["found"] for row in rows} == {str(AuditEnd.CLEAN)}, rows
    os.killpg(watching.pid, signal.SIGTERM)
    await watching.done()

    before = await world.holdings()
    tried = await audits(world, "pay", "--dry-run")
    assert tried["dry_run"]
    assert changes(before, await world.holdings()) == {}
    (paid,) = await audits(world, "pay", "--yes")
    assert (paid["auditor"], paid["amount"], paid["state"]) == (auditor, "0.02usd", "done")
    await audits(world, "pay", "--yes")
    assert changes(before, await world.holdings()) == {
        "auditor-1": 2 * FEE_NANO,
        "matcher-1": -2 * FEE_NANO,
    }
    assert {row["state"] for row in await audits(world, "ls")} == {"paid"}
    (row,) = await audits(world, "auditors")
    assert [row[k] for k in ("drawn", "paid", "owed", "cleared_jobs", "contradicted")] == [
        2,
        2,
        0,
        1,
        0,
    ]
