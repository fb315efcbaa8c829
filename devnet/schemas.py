"""Where are the JSON Schemas of all commands published? `python -m devnet.schemas` writes them anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from core.runtime.commands.schemas import every_schema, file_name

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"


def published() -> dict[str, str]:
    """File name → content, as it should stand in the folder."""
    return {
        file_name(name): json.dumps(schema, indent=1, sort_keys=True) + "\n"
        for name, schema in every_schema().items()
    }


def publish(folder: Path) -> list[str]:
    """Make the folder hold exactly the schemas; returns what changed."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = published()
    changed = [old.name for old in folder.glob("*.json") if old.name not in wanted]
    for name in changed:
        (folder / name).unlink()
    for name, content in wanted.items():
        file = folder / name
        if not file.is_file() or file.read_text() != content:
            file.write_text(content)
            changed.append(name)
    return changed


if __name__ == "__main__":
    for name in publish(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
        print(name)
