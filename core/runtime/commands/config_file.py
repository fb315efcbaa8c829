"""How is one setting changed in ``config.toml`` without losing the comments around it?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from core.protocol.errors import ConfigError
from core.runtime import settings as settings_module
from core.runtime.folders import Folders, make_private


def set_value(key: str, text: str, folders: Folders) -> tuple[str, Any]:
    """Write ``key = text`` into the user's config.toml; returns the full key and the value written.

    The value gets the type that the setting has. The new file is checked as a whole before it
    replaces the old one. Raises ConfigKeyUnknown, ConfigError; on an error the file is as before.
    """
    key = settings_module.check_key(key)
    value = _typed(key, text)
    path = folders.config_file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        why, fix = str(error), "correct that line"
        raise ConfigError(f"{path} is not valid", why=why, next_step=fix) from None
    *sections, last = key.split(".")
    node: Any = document
    for section in sections:
        inner = node.get(section)
        if inner is None:
            node[section] = tomlkit.table()
        elif not isinstance(inner, Table | dict):  # wallet = "alice"
            short = settings_module.SHORT_SECTIONS[section]
            if short == last:
                last = section
                break
            node[section] = tomlkit.table()
            node[section][short] = inner
        node = node[section]
    node[last] = value
    _replace(path, tomlkit.dumps(document), folders)
    return key, value


def _replace(path: Path, content: str, folders: Folders) -> None:
    make_private(folders.config)
    draft = path.with_name(f".{path.name}.{os.getpid()}.toml")
    draft.write_text(content, encoding="utf-8")
    try:
        nowhere = Folders.at(path.parent / ".none")
        settings_module.load(config_file=draft, environ={}, folders=nowhere)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _typed(key: str, text: str) -> Any:
    kind, attribute = settings_module.known_keys().get(key, (None, ""))
    if kind is None:
        return text  # an address under network.contracts
    default = kind.model_fields[attribute].default
    annotation = str(kind.model_fields[attribute].annotation)
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{key} cannot be '{text}'", why="it is either true or false")
        return text.lower() == "true"
    if isinstance(default, tuple) or annotation.startswith("tuple[str"):
        return [part.strip() for part in text.split(",") if part.strip()]
    if text.isdecimal() and not attribute.endswith(("_s", "_bytes")) and "int" in annotation:
        return int(text)
    return text
