"""How is a file replaced, so that nobody reads half of it?"""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_whole(path: Path, data: bytes, *, synced: bool = False) -> None:
    """Write a file so that whoever reads it finds all of it, or what was there before.

    Also after the machine lost its power where it is `synced`, which waits for the disk.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with draft.open("wb") as out:
        out.write(data)
        if synced:
            out.flush()
            os.fsync(out.fileno())
    draft.replace(path)
