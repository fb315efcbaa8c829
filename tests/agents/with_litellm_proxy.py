"""LiteLLM as a proxy in front: its own key, its own name of the model, a fallback, a stream."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from openai import OpenAI


def main(url: str, key: str, model: str) -> None:
    how = {"api_base": url, "api_key": key}
    config = {
        "model_list": [
            {"model_name": "best", "litellm_params": how | {"model": "openai/not-served"}},
            {"model_name": "other", "litellm_params": how | {"model": f"openai/{model}"}},
        ],
        "router_settings": {"fallbacks": [{"best": ["other"]}], "num_retries": 0},
        "general_settings": {"master_key": "sk-of-the-proxy"},
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.yaml")
        file.write_text(json.dumps(config))  # YAML, too
        program = str(Path(sys.executable).with_name("litellm"))
        command = [program, "--config", str(file), "--port", str(port), "--host", "127.0.0.1"]
        quiet = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        with subprocess.Popen(command, env=quiet) as proxy:
            try:
                ask(f"http://127.0.0.1:{port}")
            finally:
                proxy.terminate()
    print("done")


def ask(base: str) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"{base}/health/liveliness", timeout=2)
            break
        except OSError:
            time.sleep(0.5)
    client = OpenAI(base_url=base, api_key="sk-of-the-proxy")
    for name in ("other", "best"):
        asks = [{"role": "user", "content": "say:through a proxy"}]
        made = client.chat.completions.create(model=name, messages=asks)
        assert made.choices[0].message.content == "through a proxy", made
        stream = client.chat.completions.create(model=name, messages=asks, stream=True)
        pieces = [c.choices[0].delta.content or "" for c in stream if c.choices]
        assert "".join(pieces) == "through a proxy", pieces


main(*sys.argv[1:])
