"""Which environments do agents' programs need, and what runs in them?

`python -m tests.agents.environments` makes them under `.build/agents`: their libraries want other
versions of what Headrace uses, and of what each other use.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BUILT = HERE.parents[1] / ".build" / "agents"
_LIMIT_S, _INSTALL_LIMIT_S = 180, 900


@dataclass(frozen=True)
class Environment:
    """Packages that go together, and the programs of this folder that use them."""

    name: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]

    @property
    def python(self) -> Path:
        return BUILT / self.name / "bin" / "python"


ENVIRONMENTS = (
    Environment(
        "openai",
        ("openai-agents==0.24.0", "pydantic-ai-slim[openai]==2.68.0"),
        ("openai_agents", "pydantic_ai"),
    ),
    Environment("instructor", ("instructor==1.17.0",), ("instructor",)),
    Environment(
        "llama_index",
        ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"),
        ("llama_index",),
    ),
    Environment("litellm", ("litellm[proxy]==1.108.7",), ("litellm", "litellm_proxy")),
)
PROGRAMS = {program: made for made in ENVIRONMENTS for program in made.programs}


def run(program: str, url: str, key: str, model: str) -> str:
    """What the program of this name says against this gateway; its last line is "done" if it
    finished its task.
    """
    command = [PROGRAMS[program].python, HERE / f"with_{program}.py", url, key, model]
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(BUILT),
        "OPENAI_API_KEY": "not-this-one",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    return done.stdout if not done.returncode else f"{done.stdout}\n{done.stderr}"


def main() -> None:
    """Make the environments that are not there yet."""
    for made in ENVIRONMENTS:
        stamp = made.python.parents[1] / "installed"
        wanted = "\n".join(made.packages)
        if stamp.is_file() and stamp.read_text() == wanted:
            continue
        print(f"installing {', '.join(made.packages)}", flush=True)
        venv.create(made.python.parents[1], with_pip=True, clear=True)
        pip = [made.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *made.packages], timeout=_INSTALL_LIMIT_S, check=True)
        stamp.write_text(wanted)


if __name__ == "__main__":
    sys.exit(main())
