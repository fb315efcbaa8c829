"""How are the lines of a file run again that a job did not answer?"""

from __future__ import annotations

import tempfile
from pathlib import Path

from client.commands.ask.job_follow import unanswered
from client.commands.ask.submit import submit_file
from client.jobs.wishes import Choices
from core.protocol.errors import UsageError
from core.runtime.commands.console import Run


async def retry_failed(
    run: Run, typed: str, file: Path, model: str | None, choices: Choices
) -> None:
    """Submit the unanswered lines as a job of their own. Raises UsageError when there is none."""
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
