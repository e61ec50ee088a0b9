"""The throttle, by a clock of its own: laws for any rate and any sequence of chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from queuekeeper.clock import OwnBucket, Pace

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


@dataclass
class Crowd:
    """Tasks that share a rate, each with a time of its own; the one that is behind goes on first."""

    rate: float
    times: list[float] = field(default_factory=list)
    done: float = 0.0
    working: int = 0

    def __post_init__(self) -> None:
        self.bucket = OwnBucket(lambda: self.times[self.working], ahead_s=0.05)

    def work(self, lives: list[tuple[float, float, int]]) -> None:
        """Work as tasks that begin, live so long, and send chunks of a size; each as fast as it may."""
        self.times = [begins for begins, _, _ in lives]
        paces = [Pace(lambda: self.rate, self.bucket, self._now, self._sleep) for _ in lives]
        while alive := [
            number for number, (begins, lasts, _) in enumerate(lives) if self.times[number] < begins + lasts
        ]:
            self.working = min(alive, key=lambda number: self.times[number])
            chunk = lives[self.working][2]
            paces[self.working](chunk)
            self.done += chunk
            self.times[self.working] += 1e-4

    def _now(self) -> float:
        return self.times[self.working]

    def _sleep(self, seconds: float) -> None:
        self.times[self.working] += max(seconds, 1e-6)


@settings(max_examples=100, derandomize=True, database=None)
@given(
    rate=st.floats(500, 5_000),
    guests=st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 10), st.integers(1, 100)), max_size=8),
)
def test_rate_that_tasks_share_holds_within_five_in_a_hundred_as_they_come_and_go(
    rate: float, guests: list[tuple[float, float, int]]
) -> None:
    crowd = Crowd(rate)
    crowd.work([(0.0, 20.0, 10), *guests])
    took = max(crowd.times)
    chunks = sum(chunk for _, _, chunk in guests) + 10
    assert 0.95 * rate * 20.0 - chunks <= crowd.done <= 1.05 * rate * took + chunks
