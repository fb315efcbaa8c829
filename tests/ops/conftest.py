"""One PostgreSQL server for all tests here that need one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.ops import postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    reason = postgres.why_not()
    if reason:
        pytest.skip(reason)
    with postgres.server() as url:
        yield url


@pytest.fixture
def new_database(postgres_url: str, request: pytest.FixtureRequest) -> Callable[[], str]:
    """Fresh databases on it."""
    made = iter(range(1000))
    name = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    return lambda: postgres.database(postgres_url, f"{name}_{next(made)}")
