"""Does a shell that asks a program what may come next get its commands and options?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASKED = {
    "miner": ("miner.cli", "miner stake ", {"add", "withdraw", "status"}),
    "client": ("client.cli", "client jobs c", {"cancel"}),
    "matcher": ("matcher.cli", "matcher registry ", {"ls", "show", "diff"}),
    "auditor": ("client.auditor_cli", "auditor bu", {"bundle"}),
    "devnet": ("devnet.cli", "devnet sna", {"snapshot"}),
}


@pytest.mark.parametrize("program", ASKED)
def test_a_shell_is_told_what_may_come_next(program: str) -> None:
    module, typed, expected = ASKED[program]
    environ = os.environ | {
        f"_{program.upper()}_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split(" ")) - 1),
    }
    code = f"import sys; sys.argv = [{program!r}]; from {module} import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == expected
