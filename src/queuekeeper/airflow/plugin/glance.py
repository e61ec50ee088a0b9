"""Small lines of what grows: depth, lag, memory against its limit, and expiry per hour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.store import RUNS_SHOWN, QualityRun, QualityStore
from queuekeeper.quality.report.model import ExpiryTimeline, PublishedReport
from queuekeeper.report.charts import sparkline
from queuekeeper.report.figures import duration, instant, number, percent, size
from queuekeeper.sessions.pages import STORES
from queuekeeper.wording import number_of

Point = tuple[int, float]
"""Instant in milliseconds, and the value at it."""


@dataclass(frozen=True, kw_only=True)
class Glance:
    """One figure and its line.

    :param figure: the newest value.
    :param about: what the figure counts, and how it has changed.
    :param line: none where there are fewer than two values.
    """

    title: str
    figure: str
    about: str
    line: Markup | None


def comparable_runs(connection: Connection) -> tuple[QualityRun, ...]:
    """Return the last runs that read the same servers by the same suites as the newest whole one, the oldest first."""
    found = QualityStore(connection).whole_runs(limit=RUNS_SHOWN)
    return tuple(reversed([run for run in found if set(run.suites) == set(found[0].suites)]))


def glances(report: PublishedReport, runs: Sequence[QualityRun]) -> list[Glance]:
    """Return the figures of a report that have a history or a future; what was not read has none.

    :param runs: of :func:`comparable_runs`.
    """
    memory = report.memory
    read = "all queues" if report.is_whole else "the queues that were read"
    used = [(point.at_ms, float(point.used_bytes)) for point in memory.measured]
    found = [
        _over_runs("Depth", _numbers(runs, "messages"), number, f"messages in {read}"),
        _over_runs("Lag", _numbers(runs, "waiting"), number, "messages wait for a consumer"),
    ]
    if limit := memory.limit_bytes:
        share = [(at_ms, each / limit) for at_ms, each in used]
        found.append(_over_runs("Memory", share, percent, f"of {size(limit)} in use", ceiling=1.0))
    else:
        found.append(_over_runs("Memory", used, size, "in use, without a limit"))
    return [each for each in found if each] + [_ahead(each) for each in report.expiry if each.points]


def _numbers(runs: Sequence[QualityRun], name: str) -> list[Point]:
    """Return a number of the runs that have it."""
    known = [(run.started_at, run.numbers.get(name)) for run in runs]
    return [(round(at.timestamp() * 1_000), value) for at, value in known if value is not None]


def _over_runs(
    title: str, points: Sequence[Point], told: Callable[[float], str], about: str, *, ceiling: float | None = None
) -> Glance | None:
    """Return a figure over runs, the newest last; none without a run.

    :param told: writes a value as text.
    :param about: what the figure counts.
    :param ceiling: greatest value that there can be.
    """
    if not points:
        return None
    (_, before), (_, now) = points[0], points[-1]
    first, last = told(before), told(now)
    if len(points) == 1:
        change = "one run so far: its line begins with the second"
    elif first == last:
        change = f"the same over {number_of(len(points), 'run')}"
    else:
        change = f"{'up' if now > before else 'down'} from {first} over {number_of(len(points), 'run')}"
    return Glance(
        title=title,
        figure=last,
        about=f"{about}; {change}",
        line=_line(points, told, f"{title} over {number_of(len(points), 'run')}", ceiling=ceiling),
    )


def _ahead(timeline: ExpiryTimeline) -> Glance:
    # Past expiry was not observed; what is stored says what will expire.
    per_hour = [(point.at_ms, point.messages * 3_600_000 / timeline.span_ms) for point in timeline.points]
    span = duration(len(per_hour) * timeline.span_ms / 1_000)
    store = STORES[timeline.store]
    return Glance(
        title=f"Expiry per hour, {store}",
        figure=number(max(value for _, value in per_hour)),
        about=f"messages in the fullest of the next {span}",
        line=_line(per_hour, number, f"Messages that expire per hour in {store} over the next {span}"),
    )


def _line(
    points: Sequence[Point], told: Callable[[float], str], what: str, *, ceiling: float | None = None
) -> Markup | None:
    if len(points) < 2:
        return None
    values = [value for _, value in points]
    first, last, least, most = (told(value) for value in (values[0], values[-1], min(values), max(values)))
    return sparkline(
        # What reads alike is drawn alike: a line would make much of a difference that nobody is told.
        values if least != most else values[:1] * len(values),
        words=[f"{instant(at_ms)}: {told(value)}" for at_ms, value in points],
        label=f"{what}: first {first}, last {last}, least {least}, greatest {most}",
        ceiling=ceiling,
    )
