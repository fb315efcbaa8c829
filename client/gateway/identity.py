"""Which gateway is this, also after a restart? Its folder has a random name, for one process."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from core.protocol.errors import ConfigError
from core.runtime.folders import alone_in, make_private, make_private_file

NAME_FILE = "gateway-id"


def identity_in(folder: Path) -> str:
    """The name of this folder's gateway, made at its first start. Raises ConfigError."""
    path = make_private(folder) / NAME_FILE
    if not path.exists():
        draft = make_private_file(folder / f".{NAME_FILE}.{os.getpid()}")
        draft.write_text(f"gateway_{secrets.token_hex(12)}\n")
        with suppress(FileExistsError):  # linked: it appears whole, and the first that comes stays
            os.link(draft, path)
        draft.unlink()
    found = path.read_text().strip()
    if re.fullmatch("gateway_[0-9a-f]{24}", found) is None:
        raise ConfigError(
            "the gateway's name cannot be read",
            f"{path} holds something else",
            "nothing was changed",
            "put the file back from a copy; without it this is a new gateway, and what the old one "
            "left running waits until it expires",
        )
    return found


def sole_gateway(folder: Path) -> AbstractContextManager[None]:
    """Hold the folder, and so its name, for one process. Raises ConfigError if another has it."""
    return alone_in(
        folder,
        "this gateway",
        "use that one, or give this one a state folder of its own: `HEADRACE_HOME`",
        "that one goes on, undisturbed",
    )
