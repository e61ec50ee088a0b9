"""Published defects of event brokers and partition managers: each found by its check, and not where ours work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from queuekeeper.embedded import PostgresServer
from queuekeeper.jobs.findings import Status
from queuekeeper.postgres import Connection, connect
from queuekeeper.quality.judge.run import EVENT_SUITES, QualityReport, run_quality
from queuekeeper.quality.judge.store import Verdict
from queuekeeper.schema_migrations import migrate
from tests.event_clock import install_with_clock
from tests.golden_defects.defect import Defect, Finding, act_out
from tests.golden_defects.event_defects import DEFECTS, DISPATCHING, EventStage

pytestmark = pytest.mark.quality


@pytest.fixture
def stage(postgres_server: PostgresServer, postgres_url: str) -> Iterator[EventStage]:
    """A broker and tables in which nothing is wrong: read and idle groups, tables with and without a policy."""
    with ExitStack() as opened:

        def another() -> Connection:
            return opened.enter_context(connect(postgres_url, autocommit=True))

        def crash() -> Connection:
            postgres_server.kill()
            postgres_server.start()
            return another()

        connection = another()
        migrate(connection)
        install_with_clock(connection)
        stage = EventStage(url=postgres_url, connection=connection, is_ours=False, crash=crash)
        stage.subscribe("reads", "e.topic = 'healthy'")
        stage.subscribe("idle", "e.topic = 'never'")
        for _ in range(3):
            connection.execute("SELECT pgmb.publish(ARRAY['healthy', 'other'], ARRAY['1', '2']::jsonb[])")
            stage.poll()
        connection.execute(
            "SELECT pgmb.set_group_cursor('reads', max(next_cursor), true)"
            " FROM pgmb.read_next_events('reads', NULL, 100)"
        )
        stage.make_table("healthy", default=False, last_day=9)
        connection.execute("CREATE TABLE public.nobodys (at date) PARTITION BY RANGE (at)")
        connection.execute("CREATE TABLE public.nobodys_default PARTITION OF public.nobodys DEFAULT")
        yield stage


def judge(stage: EventStage) -> QualityReport:
    [[now]] = stage.connection.execute("SELECT moved.instant()").fetchall()
    return run_quality(postgres_url=stage.url, profile_ids=(), suites=EVENT_SUITES, quality_run_id="golden", now=now)


def found(report: QualityReport) -> frozenset[Finding]:
    assert not [result for result in report.results if result.status is Status.BROKEN], report.results
    return frozenset(
        Finding(result.suite, result.check_id, str(example.get("name", example.get("table_name"))))
        for result in report.findings
        for example in result.examples
    )


def test_nothing_is_found_in_a_healthy_broker_and_healthy_tables(stage: EventStage) -> None:
    report = judge(stage)

    assert found(report) == frozenset()
    assert report.verdict is Verdict.PASSED
    assert {result.check_id for result in report.results} == {*(f"Q{number}" for number in range(27, 34)), "Q35"}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.id)
def test_published_defect_of_events_or_partitions_is_found_by_its_check(
    stage: EventStage, defect: Defect[EventStage]
) -> None:
    act_out([defect], stage, short_life_s=0)

    assert found(judge(stage)) == defect.finds


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.id)
def test_same_events_leave_no_trace_in_our_broker_and_our_tables(stage: EventStage, defect: Defect[EventStage]) -> None:
    stage.is_ours = True

    act_out([defect], stage, short_life_s=0)

    assert found(judge(stage)) == defect.remains
    values = {"waiting-list-is-lost": ("plain", [1, 2, 3]), "retention-passes-a-consumer": ("lags", [4]),
              "condition-stops-every-group": ("sound", [5, 0])}  # fmt: skip
    if defect.id in values:
        group, expected = values[defect.id]
        assert stage.values(group) == expected


def test_only_what_was_never_dispatched_is_counted(stage: EventStage) -> None:
    (defect,) = (each for each in DEFECTS if each.id == "waiting-list-is-lost")
    act_out([defect], stage, short_life_s=0)

    (finding,) = judge(stage).findings

    assert finding.examples == ({"kind": "broker", "name": DISPATCHING, "never_dispatched": 3},)
