"""Fixtures of the Lua lane: each test runs on Valkey, and at night on Redis, where there is one, and on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queuekeeper.redis_client import RedisClient, connect, nodes
from tests.conftest import ONE_SERVER_EACH, nightly, url_of_parameter


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out ids that a cluster refuses where a test needs them served; ``test_hostile_ids`` has the refusals."""
    items[:] = [item for item in items if not _is_refused(getattr(item, "callspec", None))]


def _is_refused(callspec: Any) -> bool:
    values = {} if callspec is None else callspec.params
    names = [value for value in values.values() if isinstance(value, str)]
    return values.get("client") == "cluster" and any(name.startswith("}") for name in names)


def _emptied(url: str) -> RedisClient:
    client = connect(url)
    for _, node in nodes(client):
        node.flushall()
        node.script_flush()
    return client


# Every script meets a cluster by day, too: in the tests of declared keys, or by the store or job that calls it.
@pytest.fixture(params=[*ONE_SERVER_EACH, *nightly("cluster")])
def client(request: pytest.FixtureRequest) -> Iterator[RedisClient]:
    """Client of an empty server that knows no script."""
    with _emptied(url_of_parameter(request)) as found:
        yield found


@pytest.fixture
def single(redis_url: str) -> Iterator[RedisClient]:
    """Client of an empty single server, for tests to which a cluster makes no difference."""
    with connect(redis_url) as found:
        yield found


@pytest.fixture(params=ONE_SERVER_EACH)
def own_server(request: pytest.FixtureRequest, redis_server_factory: Callable[..., Any]) -> Any:
    """A server of the test's own, to be killed or filled."""
    return redis_server_factory(flavour=request.param)
