"""Samples of a step's speed: a long step keeps few of them, and says of itself what all of them would say."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from queuekeeper.migration.ledger.status import speeds
from queuekeeper.migration.ledger.throughput import MOST_SAMPLES, RECENT_MS, ThroughputSample, to_merge
from queuekeeper.migration.report.gather import summarise_throughput
from queuekeeper.migration.report.model import StepThroughput

DAY_MS = 86_400_000


def kept(samples: list[ThroughputSample]) -> list[ThroughputSample]:
    """Return what is kept of samples that are recorded one after the other."""
    rows: list[ThroughputSample] = []
    for sample in samples:
        rows.append(sample)
        if len(rows) > MOST_SAMPLES and (found := to_merge(rows)) is not None:
            left_out, by = found
            rows = [by if row.at_ms == by.at_ms else row for row in rows if row != left_out]
        assert len(rows) <= MOST_SAMPLES
    return rows


def day_of_work(rng: random.Random, *, pause: float) -> list[ThroughputSample]:
    """Return the counts of a day, with pauses and tasks that begin again; of its last minutes a count a second."""
    at_ms, done, samples = 0, 0, [ThroughputSample(at_ms=0, done=0)]
    while at_ms < DAY_MS:
        late = at_ms > DAY_MS - 3 * RECENT_MS
        at_ms += 1_000 if late else rng.choice([20_000, 29_000])
        if not late and rng.random() < pause:
            at_ms += rng.choice([0, 600_000])
            done = rng.choice([0, done])
        else:
            done += rng.randint(1, 60_000)
        samples.append(ThroughputSample(at_ms=at_ms, done=done))
    return samples


def told(samples: list[ThroughputSample]) -> StepThroughput:
    summary = summarise_throughput("copy", samples)
    assert summary is not None
    return replace(summary, points=())


def recent(samples: list[ThroughputSample]) -> list[ThroughputSample]:
    return [sample for sample in samples if sample.at_ms >= samples[-1].at_ms - RECENT_MS]


def test_a_day_of_work_keeps_few_samples_and_tells_the_same() -> None:
    every = day_of_work(random.Random(23), pause=0.01)
    few = kept(every)

    assert len(every) > 3_000
    assert told(few) == told(every)
    assert told(few).runs > 20


def test_speed_of_now_and_the_time_left_come_from_the_same_samples() -> None:
    every = day_of_work(random.Random(7), pause=0.01)
    few = kept(every)

    assert recent(few) == recent(every)
    assert speeds(recent(few)) == speeds(recent(every))
    assert len(recent(few)) == RECENT_MS // 1_000 + 1


def test_spans_of_a_long_step_are_alike() -> None:
    every = [ThroughputSample(at_ms=second * 25_000, done=second * 10) for second in range(3_000)]
    worked = sorted(row.worked_ms for row in kept(every) if row.worked_ms is not None)

    # Two of the shortest become one: none is longer than two of any others, but for one that is left over.
    assert worked[-1] <= 2 * (worked[0] + worked[1])


def test_where_nearly_every_sample_is_a_run_of_its_own_few_are_kept_all_the_same() -> None:
    every = [
        ThroughputSample(at_ms=number * 60_000 + second * 1_000, done=number * 40 + second * 10)
        for number in range(700)
        for second in range(2)
    ]
    before, after = told(every), told(kept(every))

    assert before.runs == 700
    assert replace(after, runs=before.runs) == before


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_samples_are_kept_as_they_are(count: int) -> None:
    assert to_merge([ThroughputSample(at_ms=number * 70_000, done=number) for number in range(count)]) is None
