"""Do load generators that others wrote get every answer of the gateway, and how fast?

guidellm (`pip install guidellm`) is run where it is installed, as it is and without a model hub:
its tokenizer is the toy's own folder. It brings torch, datasets and a web server with it, so it is
no dependency of the project; GUIDELLM names one of another environment.

aiperf 0.13 is not run: it takes a tokenizer's folder for the name of a repository, asks the model
hub for it, and ends; its built-in tokenizer is downloaded too. Where it may do so, in a separate
environment, as it pins other versions, this is the command::

    aiperf profile --model MODEL --url http://127.0.0.1:8080 --api-key KEY --streaming
        --endpoint-type chat --tokenizer builtin --concurrency 16 --request-count 400
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gateway.toy_server import NAME, Running, toy_gateway
from benchmarks.table import Row
from devnet.models.tiny_models import write_tiny_tokenizer

REQUESTS, STREAMS, TOKENS, TOKEN_S = 100, 8, 32, 0.01
WITHIN_S = 300.0


def find_guidellm() -> str | None:
    """Where it is: what GUIDELLM names, else beside this interpreter, else on the path."""
    named = os.environ.get("GUIDELLM")
    beside = str(Path(sys.executable).with_name("guidellm"))
    return named or shutil.which(beside) or shutil.which("guidellm")


def _run(program: str, gateway: Running, folder: Path) -> dict[str, Any]:
    """Its own report of one benchmark."""
    tokenizer, report = folder / "tokenizer", folder / "report.json"
    tokenizer.mkdir()
    write_tiny_tokenizer(tokenizer)
    target = f"target={gateway.url},model={NAME},api_key={gateway.key}"
    flags = {
        "--backend": f"kind=openai_http,{target}",
        "--tokenizer": f"kind=hf_auto,model={tokenizer}",
        "--data": f"kind=synthetic_text,prompt_tokens={TOKENS},output_tokens={TOKENS}",
        "--profile": f"kind=concurrent,streams={STREAMS}",
        "--constraint": f"kind=max_requests,count={REQUESTS}",
        "--output": f"kind=json,path={report}",
    }
    said = [word for pair in flags.items() for word in pair]
    command = [program, "run", "--disable-progress", *said]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    log = folder / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=out,
            stderr=out,
            env=os.environ | offline,
            start_new_session=True,  # it has workers, which are to end with it
        )
        try:
            code = process.wait(WITHIN_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code:
        raise RuntimeError(f"guidellm ended with {code}: {log.read_text()[-2000:]}")
    found: dict[str, Any] = json.loads(report.read_text())["benchmarks"][0]
    return found


def rows() -> list[Row]:
    """None where guidellm is not installed."""
    program = find_guidellm()
    if program is None:
        print("guidellm is not installed: no load of others'", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory(prefix="guidellm-") as folder, toy_gateway(TOKEN_S) as gateway:
        found = _run(program, gateway, Path(folder))
    totals, metrics = found["metrics"]["request_totals"], found["metrics"]
    rate = metrics["output_tokens_per_second"]["successful"]["mean"]
    first_ms = metrics["time_to_first_token_ms"]["successful"]["median"]
    speed = f"{rate:.0f} tokens/s, first token {first_ms:.0f} ms"
    return [
        Row(
            f"guidellm: {REQUESTS} requests in {STREAMS} streams, all answered",
            f"{REQUESTS}",
            f"{totals['successful']}, {totals['errored']} errors, {speed}",
            "",
            f"{STREAMS / TOKEN_S:.0f} tokens/s",
            totals["successful"] == REQUESTS and not totals["errored"],
        )
    ]
