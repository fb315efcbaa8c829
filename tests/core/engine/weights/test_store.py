"""Does a name find its model, without heavy imports and without leaving the cache folder?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from core.engine.weights.store import installed_models, model_path, models_dir, resolve_model
from core.protocol.errors import ModelMissing, UsageError


def test_names_and_folders_resolve(tiny: Callable, tmp_path: Path) -> None:
    folder = tiny("llama", layers=5)
    assert resolve_model(folder, tmp_path) == folder
    assert resolve_model(str(folder), tmp_path) == folder
    models_dir(tmp_path).mkdir()
    model_path("tiny-1.0", tmp_path).symlink_to(folder)
    (models_dir(tmp_path) / ".tiny-2.lock").touch()
    assert resolve_model("tiny-1.0", tmp_path) == models_dir(tmp_path) / "tiny-1.0"
    assert installed_models(tmp_path) == ["tiny-1.0"]


def test_a_missing_model_lists_what_there_is(tmp_path: Path) -> None:
    assert installed_models(tmp_path) == []
    with pytest.raises(ModelMissing, match="installed: none"):
        resolve_model("nothing", tmp_path)
    with pytest.raises(ModelMissing, match=r"no config\.json"):
        resolve_model(tmp_path / "elsewhere", tmp_path)


@pytest.mark.parametrize("name", ["", ".", "..", "a..b", "UPPER", "a b", "-x", "x" * 65, "a\n"])
def test_names_cannot_leave_the_cache(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        model_path(name, tmp_path)


def test_planning_hashing_and_text_never_import_torch(tiny: Callable) -> None:
    folder = tiny("llama", layers=5)
    code = (
        "import sys; from pathlib import Path\n"
        "from core.engine.sampling import sampling\n"
        "from core.engine.weights import shape, tokenizer, weights\n"
        f"d = Path({str(folder)!r}); shape.describe_model(d); weights.weight_roots(d)\n"
        "t = tokenizer.Tokenizer(d); t.encode_chat([{'role': 'user', 'content': 'x'}])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy import'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
