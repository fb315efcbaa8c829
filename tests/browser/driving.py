"""How is a headless Chromium told what to do? For the tests here and for benchmarks of pages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
WITHIN_S = 400.0


def missing() -> str:
    """What keeps a browser from being driven on this machine, "" where nothing does."""
    if not Path(CHROMIUM).exists():
        return f"no Chromium at {CHROMIUM}: install it, or name it with CHROMIUM"
    if shutil.which("node") is None:
        return "node is not installed"
    if not (ROOT / "node_modules" / "playwright-core").is_dir():
        return "playwright-core is not installed: run `npm ci`"
    return ""


def drive(script: Path, within_s: float = WITHIN_S, **asked: Any) -> dict[str, Any]:
    """Run a script with what it is asked; what it told. Raises RuntimeError with its error."""
    done = subprocess.run(
        ["node", str(script), json.dumps(asked)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    if not done.stdout:
        raise RuntimeError(f"{script.name} told nothing: {done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in told:
        raise RuntimeError(told["error"])
    return told
