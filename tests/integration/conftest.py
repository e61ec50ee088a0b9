"""What tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import typer.main
import typer.testing

from queuekeeper import redis_client


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """Keep the tree of commands between two calls: to build it takes a third of a second of the processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def client(named_redis: str) -> Iterator[redis_client.RedisClient]:
    """A connection to the server that the environment names."""
    with redis_client.connect(named_redis) as opened:
        yield opened
