from __future__ import annotations

import asyncio

import pytest

from queuekeeper import postgres

pytestmark = pytest.mark.sql


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_block_of_an_asyncio_connection_is_committed_unless_it_fails_and_closes_it(
    postgres_url: str, awaited: bool, fails: bool
) -> None:
    async def run() -> postgres.AsyncConnection:
        opening = postgres.connect_async(postgres_url)
        async with await opening if awaited else opening as connection:
            await connection.execute("CREATE TABLE done ()")
            if fails:
                raise LookupError(connection)
        return connection

    with postgres.connect(postgres_url) as other:
        if fails:
            with pytest.raises(LookupError) as raised:
                asyncio.run(run())
            connection = raised.value.args[0]
        else:
            connection = asyncio.run(run())
        assert connection.closed
        assert other.execute("SELECT to_regclass('done') IS NULL").fetchone() == (fails,)


def test_an_asyncio_connection_that_is_awaited_stays_open(postgres_url: str) -> None:
    async def run() -> tuple[object, ...] | None:
        connection = await postgres.connect_async(postgres_url, autocommit=True)
        try:
            return await (await connection.execute("SELECT 1")).fetchone()
        finally:
            await connection.close()

    assert asyncio.run(run()) == (1,)


def test_locks_of_a_machine_that_is_gone_are_given_up_within_a_minute(postgres_url: str) -> None:
    """It closes no connection: the server has to ask, and does so only if it is told to."""
    with postgres.connect(postgres_url) as connection:
        found = connection.execute(
            "SELECT name, setting::int FROM pg_settings WHERE name LIKE 'tcp_keepalives_%'"
        ).fetchall()
    asked = dict(found)
    assert min(asked.values()) > 0
    assert asked["tcp_keepalives_idle"] + asked["tcp_keepalives_interval"] * asked["tcp_keepalives_count"] <= 60
