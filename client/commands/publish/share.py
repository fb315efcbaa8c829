"""`client models share`: a model's published files over HTTP, and nothing else of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core.engine.weights.manifest import MANIFEST_FILE, read_manifest
from core.engine.weights.pulled import PulledFolder
from core.protocol.errors import ConfigError, ModelMissing
from core.runtime.commands.results import Result

if TYPE_CHECKING:
    from starlette.applications import Starlette


class SharedModel(Result, frozen=True):
    """`models share`: the first line."""

    folder: str
    url: str
    files: int


def sharing(folder: Path) -> tuple[Starlette, int]:
    """An application that serves the files that a folder's manifest names, by ranges.

    Raises ModelMissing for a folder that was not published or holds a part only.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import FileResponse
    from starlette.routing import Route

    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ModelMissing(
            f"{folder} was not published",
            why=f"it has no {MANIFEST_FILE}",
            next_step="`client models publish FOLDER` first",
        )
    manifest = read_manifest(path.read_bytes())
    pulled = PulledFolder.find(folder)
    if pulled and len(pulled.here) < len(manifest.tensors):
        raise ModelMissing(
            f"{folder} holds a part of the model",
            why=f"{len(pulled.here)} of {len(manifest.tensors)} tensors are here",
            next_step="`client models pull NAME` fetches the rest",
        )
    names = {MANIFEST_FILE, *manifest.files}

    async def serve(request: Request) -> FileResponse:
        name = request.path_params["name"]
        if name not in names or not (folder / name).is_file():
            raise HTTPException(404)
        return FileResponse(folder / name, media_type="application/octet-stream")

    return Starlette(routes=[Route("/{name}", serve, methods=["GET", "HEAD"])]), len(names)


def host_and_port(listen: str) -> tuple[str, int]:
    """Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"'{listen[:80]}' is no address to listen on", "it is HOST:PORT")
    return host.strip("[]"), int(port)
