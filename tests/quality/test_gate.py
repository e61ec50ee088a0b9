"""Dependents go on only when no failure stands: neither this run's nor one whose cohorts nobody has read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from queuekeeper.postgres import connect
from queuekeeper.quality.judge.gate import MEMORY, standing_failures
from queuekeeper.quality.judge.store import QualityStore, Verdict
from tests.quality_rows import NOW, save_profile

Judged = Callable[..., None]


@pytest.fixture
def store(postgres_url: str, control_schema: None) -> Iterator[QualityStore]:
    with connect(postgres_url, autocommit=True) as opened:
        yield QualityStore(opened)


@pytest.fixture
def judged(store: QualityStore, postgres_url: str) -> Judged:
    """Record a finished run: ``judged("name", Verdict.FAILED, cohorts=[0], age=timedelta(hours=1))``."""

    def record(
        name: str, verdict: Verdict, *, cohorts: list[int], age: timedelta, suites: tuple[str, ...] = ("sessions",),
        finish: bool = True, **reading: Any,
    ) -> None:  # fmt: skip
        profile_id = save_profile(postgres_url, profile_id=f"profile {name}", cohorts=cohorts, **reading)
        store.begin(
            quality_run_id=name, mode="fast", suites=suites, profile_ids=[profile_id], numbers={}, started_at=NOW - age
        )
        if finish:
            store.finish(quality_run_id=name, verdict=verdict, results=(), numbers={})

    return record


def standing(store: QualityStore) -> list[tuple[str, int]]:
    return [(failure.quality_run_id, failure.cohorts) for failure in standing_failures(store, now=NOW)]


def hours(number: int) -> timedelta:
    return timedelta(hours=number)


def test_nothing_stands_when_nothing_has_run(store: QualityStore) -> None:
    assert standing(store) == []


@pytest.mark.parametrize(
    ("later", "cohort", "stands"),
    [
        pytest.param(Verdict.PASSED, 2, "first", id="another turn that passes does not make up for it"),
        pytest.param(Verdict.FAILED, 1, "later", id="found again, it is named once, by its latest run"),
    ],
)
def test_a_failure_stands(store: QualityStore, judged: Judged, later: Verdict, cohort: int, stands: str) -> None:
    judged("first", Verdict.FAILED, cohorts=[1], age=hours(2))
    judged("later", later, cohorts=[cohort], age=hours(1))

    assert standing(store) == [(stands, 1)]


def test_a_failure_stands_until_all_its_cohorts_have_been_read_again(store: QualityStore, judged: Judged) -> None:
    judged("bad", Verdict.FAILED, cohorts=[1, 2, 3], age=hours(3))
    judged("half", Verdict.WARNED, cohorts=[1, 2], age=hours(2))
    assert standing(store) == [("bad", 1)]

    judged("at work", Verdict.RUNNING, cohorts=[3], age=hours(1), finish=False)
    assert standing(store) == [("bad", 1)]

    judged("rest", Verdict.PASSED, cohorts=[3], age=hours(0))
    assert standing(store) == []


@pytest.mark.parametrize(
    "reading",
    [
        {"store": "postgres"}, {"target": "127.0.0.1:6380/0"}, {"target": "127.0.0.1:6379/0 tbmq:"},
        {"cohort_count": 8}, {"contents": False}, {"sample_percent": 99}, {"suites": ("servers",)},
    ],
)  # fmt: skip
def test_a_reading_of_something_else_or_of_less_does_not_make_up_for_a_failure(
    store: QualityStore, judged: Judged, reading: dict[str, Any]
) -> None:
    judged("bad", Verdict.FAILED, cohorts=[1], age=hours(2))
    judged("other", Verdict.PASSED, cohorts=[1], age=hours(1), **reading)
    assert standing(store) == [("bad", 1)]

    judged("as thorough", Verdict.PASSED, cohorts=[1], age=hours(0), suites=("servers", "sessions"))
    assert standing(store) == []


def test_what_failed_in_a_sample_passes_in_the_same_or_a_larger_one(store: QualityStore, judged: Judged) -> None:
    judged("bad", Verdict.FAILED, cohorts=[1], age=hours(2), sample_percent=10, contents=False)
    judged("good", Verdict.PASSED, cohorts=[1], age=hours(1), sample_percent=10, contents=False)

    assert standing(store) == []


def test_a_failure_that_nobody_reads_again_is_forgotten_in_the_end(store: QualityStore, judged: Judged) -> None:
    judged("bad", Verdict.FAILED, cohorts=[1], age=MEMORY + hours(1))

    assert standing(store) == []
