"""Laws of ranges: whatever steps a table has had, and whenever maintenance ran, no key has two partitions or none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queuekeeper.maintenance.partitions.keys import Key, KeyKind, Span, parse_step
from queuekeeper.maintenance.partitions.ranges import Range, covered_until, gaps, missing, overlaps

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_STEPS = ("15 minutes", "1 hour", "6 hours", "1 day", "2 days", "1 week", "1 month", "3 months", "1 year")
HOUR = 3_600_000_000

KEYS = {
    "date": Key(column="at", type_name="date"),
    "timestamptz": Key(column="at", type_name="timestamp with time zone"),
    "timestamp": Key(column="at", type_name="timestamp without time zone"),
    "event_id": Key(column="id", type_name="character varying"),
    "bigint": Key(column="n", type_name="bigint"),
}

moments = st.integers(-150_000 * 365 * 24, 290_000 * 365 * 24).map(lambda hours: hours * HOUR // 10)
near_moments = st.datetimes(datetime(1970, 1, 2), datetime(2400, 1, 1)).map(  # noqa: DTZ001 - made aware below
    lambda each: (each.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
)


def step_of(text: str, key: Key) -> Span:
    return parse_step(text, kind=key.kind)


@given(text=st.sampled_from(TIME_STEPS), position=moments)
def test_edges_enclose_every_instant_and_follow_each_other(text: str, position: int) -> None:
    step = step_of(text, KEYS["timestamptz"])
    edge, following = step.floor(position), step.next(position)

    assert edge <= position < following
    assert step.floor(edge) == edge == step.ceiling(edge)
    assert step.floor(following) == following
    assert step.floor(following - 1) == edge
    assert step.ceiling(position) in {edge, following}


@given(text=st.sampled_from(TIME_STEPS), position=near_moments)
def test_event_ids_have_the_edges_of_their_time(text: str, position: int) -> None:
    by_time, by_id = step_of(text, KEYS["timestamptz"]), step_of(text, KEYS["event_id"])

    assert by_id.floor(position << 36) == by_time.floor(position) << 36
    assert by_id.next((position << 36) + 5) == by_time.next(position) << 36


@given(position=near_moments, name=st.sampled_from(["timestamptz", "timestamp"]))
def test_texts_of_times_are_those_of_the_calendar(position: int, name: str) -> None:
    key = KEYS[name]
    expected = _EPOCH + timedelta(microseconds=position)

    assert key.text(position)[:19] == f"{expected:%Y-%m-%d %H:%M:%S}"
    assert key.position(key.text(position)) == position


@given(position=moments, name=st.sampled_from(["timestamptz", "timestamp"]))
def test_texts_of_times_beyond_the_calendar_of_python_come_back(position: int, name: str) -> None:
    assert KEYS[name].position(KEYS[name].text(position)) == position


@given(position=st.integers(0, 2**88 - 1))
def test_texts_of_event_ids_sort_as_their_positions(position: int) -> None:
    key = KEYS["event_id"]

    assert key.position(key.text(position)) == position
    assert key.text(position) <= key.text(2**88 - 1)
    assert len(key.text(position)) == 24


@given(days=st.integers(-1_000_000, 1_000_000))
def test_texts_of_dates_come_back(days: int) -> None:
    key = KEYS["date"]

    assert key.position(key.text(days * 24 * HOUR)) == days * 24 * HOUR


@given(position=near_moments, months=st.integers(1, 30))
def test_months_back_and_forth_stay_within_the_month(position: int, months: int) -> None:
    span = Span(months=months)

    assert abs(span.before(span.after(position)) - position) <= 3 * 24 * HOUR
    assert span.before(position) < position < span.after(position)


@st.composite
def ranges_of(draw: st.DrawFn) -> list[Range]:
    edges = sorted(draw(st.sets(st.integers(-50, 50), max_size=12)))
    pieces = [Range(lower=one, upper=other) for one, other in pairwise(edges)]
    return [each for each in pieces if draw(st.booleans())]


@given(ranges=ranges_of(), step=st.integers(1, 20), start=st.integers(-60, 40), length=st.integers(1, 60), now=moments)
def test_missing_ranges_close_every_gap_and_nothing_else(
    ranges: list[Range], step: int, start: int, length: int, now: int
) -> None:
    end = start + length
    made = missing(ranges, step=Span(size=step, scale=0), start=start, now=now % 100 - 50, end=end, at_most=1_000)

    assert gaps([*ranges, *made], start=start, end=end) == []
    assert overlaps([*ranges, *made]) == []
    assert all(start <= each.start and each.end <= end for each in made)


@given(ranges=ranges_of(), step=st.integers(1, 5), now=st.integers(-50, 50), at_most=st.integers(1, 6))
def test_a_few_ranges_at_a_time_lead_to_the_same_cover(ranges: list[Range], step: int, now: int, at_most: int) -> None:
    found = list(ranges)
    for _ in range(200):
        made = missing(found, step=Span(size=step, scale=0), start=-60, now=now, end=60, at_most=at_most)
        assert len(made) <= at_most
        found += made
        assert overlaps(found) == []
        if not made:
            break
    assert gaps(found, start=-60, end=60) == []


@given(ranges=ranges_of(), position=st.integers(-60, 60))
def test_cover_ends_where_the_first_uncovered_key_is(ranges: list[Range], position: int) -> None:
    until = covered_until(ranges, position)
    covered = {key for each in ranges for key in range(each.start, each.end)}

    assert until is not None
    assert all(key in covered for key in range(position, until))
    assert until not in covered


class PartitionLife(RuleBasedStateMachine):
    """A table's partitions over the years: the step changes, maintenance fails to run, old ones go, holes are made."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[Range] = []
        self.maintained = False
        self.now = 0
        self.end = 0
        self.step_text = "1 day"
        self.key = KEYS["timestamptz"]

    @initialize(now=near_moments, key=st.sampled_from(["timestamptz", "event_id", "bigint"]))
    def begin(self, now: int, key: str) -> None:
        self.key = KEYS[key]
        self.now = now << 36 if key == "event_id" else now
        self.step_text = "1000000000" if key == "bigint" else "1 day"

    @property
    def unit(self) -> int:
        return (HOUR << 36) if self.key.kind is KeyKind.EVENT_ID else HOUR

    @property
    def step(self) -> Span:
        return step_of(self.step_text, self.key)

    @rule(data=st.data())
    def change_step(self, data: st.DataObject) -> None:
        self.step_text = data.draw(
            st.sampled_from(("1000000000", "36000000000") if self.key.kind is KeyKind.INTEGER else TIME_STEPS)
        )

    @rule(hours=st.integers(1, 24 * 70))
    def time_goes_by(self, hours: int) -> None:
        self.now += hours * self.unit
        self.maintained = False

    @rule(at_most=st.integers(20, 60), ahead_hours=st.integers(1, 20))
    def maintain(self, at_most: int, ahead_hours: int) -> None:
        end = self.step.ceiling(self.now + ahead_hours * self.unit)
        start = min([self.step.floor(self.now), *(each.start for each in self.ranges)])
        for _ in range(2_000):
            made = missing(self.ranges, step=self.step, start=start, now=self.now, end=end, at_most=at_most)
            if not made:
                break
            self.ranges += made
        self.maintained = True
        self.end = end

    @precondition(lambda self: len(self.ranges) > 3)
    @rule(keep=st.integers(1, 3))
    def retire(self, keep: int) -> None:
        old = sorted((each for each in self.ranges if each.end <= self.now), key=lambda each: each.start)
        for each in old[: max(0, len(old) - keep)]:
            self.ranges.remove(each)

    @precondition(lambda self: self.ranges)
    @rule(data=st.data())
    def make_a_hole(self, data: st.DataObject) -> None:
        self.ranges.remove(data.draw(st.sampled_from(self.ranges)))
        self.maintained = False

    @invariant()
    def no_key_has_two_partitions(self) -> None:
        assert overlaps(self.ranges) == []

    @invariant()
    def maintained_table_has_no_gap_and_takes_the_present(self) -> None:
        if not self.maintained:
            return
        ordered = sorted(self.ranges, key=lambda each: each.start)
        assert gaps(ordered, start=ordered[0].start, end=self.end) == []
        until = covered_until(ordered, self.now)
        assert until is not None
        assert until > self.now


TestPartitionLife = PartitionLife.TestCase
TestPartitionLife.settings = settings(max_examples=25, stateful_step_count=12)
