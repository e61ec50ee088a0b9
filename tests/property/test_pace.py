"""The throttle, by a clock of its own: laws for any rate and any sequence of chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from queuekeeper.clock import Pace

chunk_sizes = st.lists(st.integers(1, 256), min_size=1, max_size=60)


@dataclass
class Course:
    """A task that sends chunks, and the time that passes meanwhile."""

    rate: float | None
    now: float = 100.0
    slept: float = 0.0
    reports: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pace = Pace(self._report, now_s=lambda: self.now, sleep=self._sleep)

    def _report(self) -> float | None:
        self.reports.append(self.now)
        return self.rate

    def _sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 1.0
        # No clock is finer than this, and a sleep that does not move the clock would never end a wait.
        self.now += max(seconds, 1e-6)
        self.slept += seconds

    def send(self, sizes: list[int], *, each_takes_s: float = 0.0) -> float:
        """Return how long the chunks took."""
        started = self.now
        for size in sizes:
            self.pace(size)
            self.now += each_takes_s
        return self.now - started


@settings(max_examples=300, derandomize=True, database=None)
@given(sizes=chunk_sizes, rate=st.floats(10, 5_000), work_s=st.floats(0, 0.05))
def test_rate_is_neither_exceeded_nor_missed(sizes: list[int], rate: float, work_s: float) -> None:
    took = Course(rate).send(sizes, each_takes_s=work_s)
    total = sum(sizes)
    # Half a second's worth may be ahead of its time, the last chunk's own work comes after its message left.
    assert total <= rate * (took + 0.5) + 1e-6
    assert took <= max(total / rate, len(sizes) * work_s) + len(sizes) * (work_s + 1e-5)


def test_no_throttle_never_waits() -> None:
    course = Course(None)
    course.send([256] * 1_000)
    assert course.slept == 0


def test_an_hour_unused_is_worth_one_chunk_and_half_a_second() -> None:
    course = Course(100)
    course.send([1])
    course.now += 3_600
    assert course.send([100] * 5) >= (500 - 100 - 50) / 100 - 1e-6


def test_throttle_changed_while_running_takes_effect_within_a_second() -> None:
    course = Course(100)
    assert course.send([100] * 5) >= 4.5 - 1e-6
    course.rate = 1_000
    assert course.send([100] * 10) <= 1.0 + 1.0 + 1e-6
    course.rate = 10
    course.now += 1
    assert course.send([10] * 30) >= (300 - 10 - 5) / 10 - 1e-6


def test_throttle_switched_off_ends_the_wait_within_a_second() -> None:
    course = Course(1)
    course.send([1])
    course.rate = None
    assert course.send([10_000]) <= 1.0 + 1e-6
    assert course.send([10_000] * 10) == 0


def test_throttle_switched_on_does_not_charge_for_what_was_sent_before() -> None:
    course = Course(None)
    course.send([256] * 100)
    course.rate = 256
    course.now += 1
    assert course.send([256]) <= 1.0 + 1e-6


def test_progress_is_reported_about_once_a_second_also_while_waiting() -> None:
    course = Course(10)
    course.send([100] * 3)
    gaps = [after - before for before, after in zip(course.reports, course.reports[1:], strict=False)]
    assert len(gaps) >= 20
    assert all(1.0 <= gap <= 2.0 for gap in gaps)
