"""Small lines of what grows: depth, lag, memory against its limit, and expiry per hour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.store import RUNS_SHOWN, QualityRun, QualityStore
from queuekeeper.quality.report.model import ExpiryTimeline, PublishedReport
from queuekeeper.report.charts import sparkline
from queuekeeper.report.figures import duration, number, percent, size
from queuekeeper.sessions.model import STORES


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
    """Return the last runs that read the same servers by the same suites as the newest one, the oldest first."""
    store = QualityStore(connection)
    newest = store.runs(limit=1, finished=True)
    if not newest:
        return ()
    found = store.runs(limit=RUNS_SHOWN, finished=True, same_servers_as=newest[0].quality_run_id)
    alike = [run for run in found if (run.mode, set(run.suites)) == (newest[0].mode, set(newest[0].suites))]
    return tuple(reversed(alike))


def glances(report: PublishedReport, runs: Sequence[QualityRun]) -> list[Glance]:
    """Return the figures of a report that have a history or a future; what was not read has none.

    :param runs: of :func:`comparable_runs`.
    """
    memory = report.memory
    used = [point.used_bytes for point in memory.measured]
    found = [
        _over_runs("Depth", [run.numbers.get("messages") for run in runs], number, "messages in all queues"),
        _over_runs("Lag", [run.numbers.get("waiting") for run in runs], number, "messages wait for a consumer"),
    ]
    if limit := memory.limit_bytes:
        share = [at / limit for at in used]
        found.append(_over_runs("Memory", share, percent, f"of {size(limit)} in use", ceiling=1.0))
    else:
        found.append(_over_runs("Memory", used, size, "in use, without a limit"))
    return [each for each in found if each] + [_ahead(each) for each in report.expiry if each.points]


def _over_runs(
    title: str,
    values: Sequence[float | None],
    told: Callable[[float], str],
    about: str,
    *,
    ceiling: float | None = None,
) -> Glance | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    first, last = told(known[0]), told(known[-1])
    if len(known) == 1:
        change = "one run so far: its line begins with the second"
    elif first == last:
        change = f"as {len(known)} runs ago"
    else:
        change = f"{'up' if known[-1] > known[0] else 'down'} from {first} over {len(known)} runs"
    return Glance(
        title=title,
        figure=last,
        about=f"{about}; {change}",
        line=_line(known, told, f"{title} over {len(known)} runs", ceiling=ceiling),
    )


def _ahead(timeline: ExpiryTimeline) -> Glance:
    # Past expiry was not observed; what is stored says what will expire.
    per_hour = [point.messages * 3_600_000 / timeline.span_ms for point in timeline.points]
    span = duration(len(per_hour) * timeline.span_ms / 1_000)
    store = STORES[timeline.store]
    return Glance(
        title=f"Expiry per hour, {store}",
        figure=number(max(per_hour)),
        about=f"messages in the fullest of the next {span}",
        line=_line(per_hour, number, f"Messages that expire per hour in {store} over the next {span}"),
    )


def _line(
    values: Sequence[float], told: Callable[[float], str], what: str, *, ceiling: float | None = None
) -> Markup | None:
    if len(values) < 2:
        return None
    first, last, least, most = (told(value) for value in (values[0], values[-1], min(values), max(values)))
    return sparkline(
        values, label=f"{what}: first {first}, last {last}, least {least}, greatest {most}", ceiling=ceiling
    )
