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
