"""Does a name that stands for models reach the first that is served, and that the key may use?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from core.protocol.errors import ConfigError
from core.runtime.folders import Folders
from core.runtime.settings import load
from tests.client.gateway.world import World

FLAGS = {"gateway.aliases": "fast = not-served, toy; none = not-served, other"}


def client_of(world: World, *models: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=world.base_url, api_key=world.new_key(models=models))


def test_an_alias_is_answered_by_the_first_model_that_is_served(
    make_world: Callable[..., World],
) -> None:
    with client_of(make_world(flags=FLAGS)) as client:
        asks: list[Any] = [{"role": "user", "content": "say:hello"}]
        made = client.chat.completions.create(model="fast", messages=asks)
        assert (made.choices[0].message.content, made.model) == ("hello", "toy")
        names = [model.id for model in client.models.list()]
        assert names == ["toy", "fast", "none"]
        fast: Any = client.models.retrieve("fast")
        assert fast.alias_of == ["not-served", "toy"]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="none", messages=asks)


@pytest.mark.parametrize(
    ("models", "alias", "direct"),
    [((), True, True), (("fast",), True, False), (("toy",), True, True), (("x",), False, False)],
)
def test_a_key_may_use_an_alias_by_its_name_or_by_a_models(
    make_world: Callable[..., World], models: tuple[str, ...], alias: bool, direct: bool
) -> None:
    with client_of(make_world(flags=FLAGS), *models) as client:
        for name, may in (("fast", alias), ("toy", direct)):
            try:
                client.completions.create(model=name, prompt="say:x")
                assert may, name
            except openai.PermissionDeniedError:
                assert not may, name


@pytest.mark.parametrize("wrong", ["fast", "fast=", "=toy", "a=b; a=c"])
def test_an_alias_that_says_nothing_is_refused(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="aliases"):
        load(flags={"gateway.aliases": wrong}, environ={}, folders=Folders.at(tmp_path))
