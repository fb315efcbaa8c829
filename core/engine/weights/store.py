"""Where do models live on this machine, and which folder does a name mean?"""

from __future__ import annotations

import re
from pathlib import Path

from core.protocol.errors import ModelMissing, UsageError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def is_name(text: str) -> bool:
    """Whether a model may be called so: it is a safe name of a folder, too."""
    return _NAME.fullmatch(text) is not None and ".." not in text


def models_dir(cache_dir: Path | None = None) -> Path:
    """The folder of model folders: `models` in the cache folder given, else in the user's."""
    if cache_dir is None:
        import platformdirs

        cache_dir = Path(platformdirs.user_cache_dir("headrace"))
    return Path(cache_dir) / "models"


def model_path(name: str, cache_dir: Path | None = None) -> Path:
    """The folder that a model of this name has or would have. Raises UsageError for a bad name."""
    if not is_name(name):
        raise UsageError(
            f"'{name}' is no model name",
            why="names are up to 64 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit",
        )
    return models_dir(cache_dir) / name


def installed_models(cache_dir: Path | None = None) -> list[str]:
    """Names of the models on this machine, sorted."""
    folder = models_dir(cache_dir)
    if not folder.is_dir():
        return []
    found = (path.parent.name for path in folder.glob("*/config.json"))
    return sorted(name for name in found if _NAME.fullmatch(name))


def pulled_path(model_id: str, cache_dir: Path | None = None) -> Path:
    """The folder that a published model is pulled into, by its id (0x-hex)."""
    return models_dir(cache_dir) / model_id.lower().removeprefix("0x")


def find_model(name: str, model_id: str | None, cache_dir: Path | None = None) -> Path | None:
    """The folder of a model that was pulled by this id, else of one by this name, if any is here.

    A name may be a folder's path. What the user's own cache holds is found from every home.
    """
    if len(Path(name).parts) > 1 and (Path(name) / "config.json").is_file():
        return Path(name)
    caches = dict.fromkeys((cache_dir, None))
    folders = [pulled_path(model_id, cache) for cache in caches] if model_id else []
    if is_name(name):
        folders += [model_path(name, cache) for cache in caches]
    return next((folder for folder in folders if (folder / "config.json").is_file()), None)


def resolve_model(name_or_path: str | Path, cache_dir: Path | None = None) -> Path:
    """The folder of an installed model, by name or folder. Raises ModelMissing or UsageError."""
    as_path = Path(name_or_path)
    if (as_path / "config.json").is_file() and (as_path.is_absolute() or len(as_path.parts) > 1):
        return as_path
    if as_path.is_absolute() or len(as_path.parts) > 1:
        raise ModelMissing(f"{as_path} is not a model folder", why="it has no config.json")
    folder = model_path(str(name_or_path), cache_dir)
    if not (folder / "config.json").is_file():
        installed = installed_models(cache_dir)
        raise ModelMissing(
            f"model '{name_or_path}' is not on this machine",
            why="installed: " + (", ".join(installed) or "none"),
            installed=installed,
        )
    return folder
