"""Healthy queues in great number, as three kinds of broker keep them: no check finds anything.

30,000 messages in each store by day and 200,000 at night:
``HEALTHY_MESSAGES=1000000 make test-quality ARGS="-k healthy_data"`` makes them a million in each store.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from queuekeeper import postgres, redis_client
from queuekeeper.clock import system_clock
from queuekeeper.jobs.findings import Status
from queuekeeper.quality.judge.run import run_quality
from queuekeeper.quality.judge.store import Verdict
from queuekeeper.quality.profile.model import ProfileParameters, ProfileReport
from queuekeeper.quality.profile.stores import profile_postgres, profile_redis
from queuekeeper.sessions import sample
from queuekeeper.sessions.sample_parameters import SampleParameters
from tests.golden_defects import healthy

pytestmark = pytest.mark.spark

PARAMETERS = ProfileParameters(cohort_count=8, contents=True)


@pytest.fixture
def messages(request: pytest.FixtureRequest) -> int:
    """How many messages each store gets."""
    return int(os.environ.get("HEALTHY_MESSAGES", "200000" if request.config.getoption("--nightly") else "30000"))


def judged(postgres_url: str, profile: ProfileReport, suite: str) -> tuple[Verdict, dict[str, int]]:
    """Return the verdict, and by check how many queues fail an expectation."""
    report = run_quality(
        postgres_url=postgres_url, profile_ids=(profile.profile_id,), suites=(suite,),
        quality_run_id=profile.profile_id, now=datetime.now(UTC),
    )  # fmt: skip
    failed = {each.check_id: each.unexpected_count for each in report.results if each.status is not Status.PASSED}
    return report.verdict, failed


def test_redis_of_healthy_data_passes_every_check(
    spark: SparkSession, valkey_url: str, postgres_url: str, messages: int
) -> None:
    with redis_client.connect(valkey_url) as client:
        sessions = healthy.fill(client, messages=messages, now_ms=system_clock())
    profile = profile_redis(
        spark, redis_url=valkey_url, postgres_url=postgres_url, parameters=PARAMETERS, now_ms=system_clock()
    )
    assert (profile.queues, profile.messages, profile.live) == (sessions, messages, messages)
    assert profile.faulty_queues == 0
    assert judged(postgres_url, profile, "sessions_redis") == (Verdict.PASSED, {})


def test_postgres_of_healthy_data_passes_every_check(spark: SparkSession, postgres_url: str, messages: int) -> None:
    now_ms = system_clock()
    with postgres.connect(postgres_url, autocommit=True) as connection:
        sample.fill(
            connection,
            SampleParameters(
                messages=messages, sessions=messages // 10, long_queue_messages=9_000, now_ms=now_ms,
                create_schema=True,
            ),
        )  # fmt: skip
        # The broker's nightly clean-up has been there.
        kept = connection.execute(
            "WITH expired AS (DELETE FROM device_publish_msg"
            " WHERE time + 1000 * least(coalesce(msg_expiry_interval, 604800), 604800) < %s RETURNING 1)"
            " SELECT %s - count(*) FROM expired",
            (now_ms, messages),
        ).fetchone()
    assert kept is not None
    profile = profile_postgres(spark, postgres_url=postgres_url, parameters=PARAMETERS, now_ms=now_ms)
    assert (profile.messages, profile.faulty_queues) == (kept[0], 0)
    verdict, failed = judged(postgres_url, profile, "sessions_postgres")
    # Acknowledgements leave gaps in every other queue of the sample.
    assert (verdict, failed.keys() - {"Q6"}) == (Verdict.PASSED, set())
