"""A copy that was killed, whatever died, is resumed by repeating it; the outcome is the same to the last bit."""

from __future__ import annotations

import random
import re

import pytest
from pyspark.sql import functions as F

from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.errors import RefusedError, ServerUnavailable
from queuekeeper.migration.ledger.model import CopyReport
from queuekeeper.migration.offline.copy import copy_sessions
from queuekeeper.migration.offline.source import layout, open_source
from queuekeeper.migration.servers import MESSAGES
from queuekeeper.migration.spark.session import our_errors
from queuekeeper.sessions.pages import Layout
from tests.append_only import append_only_file, finished_sessions_that_lack_something
from tests.chaos.conftest import THROTTLE, Laboratory, Undisturbed
from tests.chaos.support import differing

pytestmark = pytest.mark.chaos


def assert_as_undisturbed(laboratory: Laboratory, undisturbed: Undisturbed) -> None:
    report = laboratory.verify()
    assert [row for row in report.ledger if row.unaccounted or row.differences] == []
    assert report.balanced
    assert report.digest == undisturbed.digest
    assert differing(laboratory.contents(), undisturbed.contents) == []


def resumed(laboratory: Laboratory) -> CopyReport:
    """Repeat the copy; it must build on what is there."""
    report = laboratory.copy()
    assert report.sessions_moved_on == 0
    assert report.sessions_unchanged > 0
    assert 0 < report.messages_written < laboratory.to_copy
    return report


def copied_until_death(
    laboratory: Laboratory, server: PostgresServer | RedisServer, dice: random.Random, *, words: str
) -> None:
    """Copy until a server is killed half-way; the driver must end with these words, a pattern, and say them."""
    share = dice.uniform(0.3, 0.6)
    with laboratory.driver() as driver:
        laboratory.wait_for(share, running=driver.running)
        server.kill()
        assert driver.wait() == 4, driver.said
        error = driver.result
        assert error["error"] == "ServerUnavailable"
        assert re.search(words, error["message"]), error
        assert f"\nerror: {error['message']}\n" in driver.said


@pytest.mark.parametrize(
    "laboratory", [Layout.TBMQ, pytest.param(Layout.PACKED, marks=pytest.mark.nightly)], indirect=True
)
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_copy_goes_on_after_its_driver_was_killed(
    laboratory: Laboratory, undisturbed: Undisturbed, dice: random.Random, times: int
) -> None:
    laboratory.reset(throttle=THROTTLE)
    for earliest, latest in ((0.3, 0.45), (0.5, 0.65))[:times]:
        share = dice.uniform(earliest, latest)
        with laboratory.driver() as driver:
            laboratory.wait_for(share, running=driver.running)
            driver.kill()

    resumed(laboratory)

    assert_as_undisturbed(laboratory, undisturbed)


# tests/lua/test_import_session.py tears the file; what goes on afterwards goes on after the driver's death too.
@pytest.mark.nightly
def test_a_copy_stops_with_words_when_redis_dies_and_goes_on_when_it_is_back(
    laboratory: Laboratory, undisturbed: Undisturbed, dice: random.Random
) -> None:
    laboratory.reset(throttle=THROTTLE)
    emptied = append_only_file(laboratory.redis)
    copied_until_death(laboratory, laboratory.redis, dice, words=r"127\.0\.0\.1:\d+ (?:closed|refuses) the connection")
    # Under everysec a crash of the machine takes the last second with it; a cut anywhere leaves a torn command.
    written = append_only_file(laboratory.redis)
    assert written.path == emptied.path
    lost = dice.randint(1, (written.size_bytes - emptied.size_bytes) // 4)
    with written.path.open("r+b") as file:
        file.truncate(written.size_bytes - lost)

    laboratory.redis.start()
    with laboratory.redis.client() as client:
        assert finished_sessions_that_lack_something(client) == []
    resumed(laboratory)

    assert_as_undisturbed(laboratory, undisturbed)


# Its words are those of the next test, what goes on afterwards goes on after the driver's death too.
@pytest.mark.nightly
def test_a_copy_stops_with_words_when_postgresql_dies_and_goes_on_when_it_is_back(
    laboratory: Laboratory, undisturbed: Undisturbed, dice: random.Random
) -> None:
    laboratory.reset(throttle=THROTTLE)
    words = r"PostgreSQL at 127\.0\.0\.1:\d+.* (?:broke the connection|is not available)"
    copied_until_death(laboratory, laboratory.postgres, dice, words=words)

    laboratory.postgres.start()
    resumed(laboratory)

    assert_as_undisturbed(laboratory, undisturbed)


def test_the_death_of_postgresql_while_it_is_read_is_told_in_words(laboratory: Laboratory) -> None:
    plan = laboratory.plan
    placement = layout(cohorts=plan.cohorts, wanted=plan.chosen, tasks=2)
    told = re.escape(f"PostgreSQL at 127.0.0.1:{laboratory.postgres.port}")

    def read_while_it_dies() -> None:
        with open_source(laboratory.spark, postgres_url=laboratory.postgres_url, placement=placement) as source:
            rows = source.read(MESSAGES, {"client_id": "string"})
            laboratory.postgres.kill()
            with our_errors():
                rows.agg(F.count("client_id")).collect()

    try:
        with pytest.raises(ServerUnavailable, match=told):
            read_while_it_dies()
    finally:
        laboratory.postgres.start()


# What refuses it is the lock of its cohorts: tests/spark/test_limits.py.
@pytest.mark.nightly
def test_a_second_copy_is_refused_while_the_first_one_runs_and_completes(
    laboratory: Laboratory, undisturbed: Undisturbed, dice: random.Random
) -> None:
    laboratory.reset(throttle=THROTTLE)
    with laboratory.driver() as first:
        laboratory.wait_for(dice.uniform(0.1, 0.5), running=first.running)
        with pytest.raises(
            RefusedError,
            match=rf"another copy of plan {laboratory.plan.plan_id} is running \(backend \d+, started .* UTC\): wait",
        ):
            copy_sessions(
                laboratory.spark,
                postgres_url=laboratory.postgres_url,
                redis_url=laboratory.redis.url,
                plan_id=laboratory.plan.plan_id,
            )
        assert first.running()
        with laboratory.ledger() as ledger:
            ledger.set_throttle(laboratory.plan.plan_id, None)
        assert first.wait() == 0, first.said
        assert first.result["messages_written"] == laboratory.to_copy

    assert_as_undisturbed(laboratory, undisturbed)
