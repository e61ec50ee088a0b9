"""Ids of events are unique whoever makes them, rise within a session, and hold their instant whatever the time zone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuekeeper.events.schema import install
from queuekeeper.postgres import Connection, connect
from tests.addresses import url_of

pytestmark = pytest.mark.property

SESSIONS = 6
NUMBERS = 2**36
BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
END = datetime(2112, 9, 17, 23, 53, 47, tzinfo=UTC)  # 13 hex digits of microseconds hold until the year 2112

instants = st.datetimes(BEGIN.replace(tzinfo=None), END.replace(tzinfo=None), timezones=st.just(UTC))
numbers = st.integers(0, NUMBERS - 1) | st.integers(0, 40).map(lambda power: 2**power % NUMBERS)


@pytest.fixture
def broker(postgres_url: str) -> Iterator[Connection]:
    """A database with the broker."""
    with connect(postgres_url, autocommit=True) as connection:
        install(connection)
        yield connection


def made(url: str, *, statements: int, rows: int, by_function: bool) -> list[str]:
    """Publish in a session of its own and return the ids in the order in which they were given."""
    found: list[str] = []
    with connect(url, autocommit=True) as connection:
        for _ in range(statements):
            if by_function:
                answer = connection.execute(
                    "SELECT pgmb.publish(array_fill('t'::text, ARRAY[%s]), array_fill('1'::jsonb, ARRAY[%s]), NULL)",
                    (rows, rows),
                )
            else:
                answer = connection.execute(
                    "INSERT INTO pgmb.events (topic, payload) SELECT 't', '1' FROM generate_series(1, %s) RETURNING id",
                    (rows,),
                )
            found += [event_id for (event_id,) in answer]
    return found


@pytest.mark.parametrize("by_function", [True, False])
def test_ids_of_many_sessions_are_unique_and_rise_within_each(broker: Connection, by_function: bool) -> None:
    url = url_of(broker)
    with ThreadPoolExecutor(SESSIONS) as pool:
        lists = list(
            pool.map(
                lambda rows: made(url, statements=20, rows=rows, by_function=by_function), [1, 3, 10, 30, 100, 100]
            )
        )
    for found in lists:
        assert found == sorted(set(found))
    every = [event_id for found in lists for event_id in found]
    assert len(set(every)) == len(every)
    assert broker.execute("SELECT count(*) FROM pgmb.events").fetchall() == [(len(every),)]
    assert all(len(event_id) == 24 and event_id.startswith("pm") for event_id in every)


def test_ids_stay_unique_when_their_numbers_begin_anew(broker: Connection) -> None:
    broker.execute("SELECT setval('pgmb.event_numbers', %s)", (NUMBERS - 500,))
    url = url_of(broker)
    with ThreadPoolExecutor(SESSIONS) as pool:
        lists = list(pool.map(lambda _: made(url, statements=5, rows=100, by_function=False), range(SESSIONS)))
    every = [event_id for found in lists for event_id in found]
    assert len(set(every)) == len(every) == SESSIONS * 500
    last_digits = {int(event_id[-9:], 16) for event_id in every}
    assert min(last_digits) < 5_000
    assert max(last_digits) > NUMBERS - 500


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(one=st.tuples(instants, numbers), other=st.tuples(instants, numbers))
def test_ids_sort_as_their_instants_then_as_their_numbers(
    broker: Connection, one: tuple[datetime, int], other: tuple[datetime, int]
) -> None:
    ids = []
    for instant, number in (one, other):
        [[event_id, read]] = broker.execute(
            "SELECT i.id, pgmb.extract_date_from_event_id(i.id) FROM (SELECT pgmb.create_event_id(%s, %s) AS id) AS i",
            (instant, number),
        ).fetchall()
        assert abs(read - instant) <= timedelta(microseconds=1)
        ids.append(event_id)
    assert (ids[0] < ids[1]) == (one < other)
    assert (ids[0] == ids[1]) == (one == other)
