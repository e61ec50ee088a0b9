"""Reads and writes the results of quality runs, and reads the profiles that they judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg.types.json import Jsonb

from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import Severity
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.postgres import Connection, rows_of, translated_errors
from queuekeeper.quality.profile.model import FAULTS
from queuekeeper.sql_statements import statement
from queuekeeper.wording import no_such

RUNS_SHOWN = 30
"""Finished runs of a trend."""

_KNOWN = 5
_STORED = tuple(each.name for each in fields(Finding) if each.name not in {"remedy_url", "kind", "subject"})

_OF_QUEUE = ("client_hash", "cohort", "slot", "shard", "messages", "live", "dead", "payload_bytes")
DEPTHS = (0, *(2**power for power in range(17)))
"""Lower ends of the buckets of a depth histogram: 0, 1, 2 to 3, 4 to 7, and so on, to 65,536 and more."""


class Verdict(StrEnum):
    """Verdict of a quality run."""

    RUNNING = "running"  # not finished, or killed
    PASSED = "passed"  # nothing to do
    WARNED = "warned"  # a person should look at it; dependent work may go on
    FAILED = "failed"  # a critical check failed, or a check could not run


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A recorded profile: one reading of a store.

    :param target: address and prefix of keys, without a password.
    :param cohorts: cohorts that were read, of ``cohort_count``.
    :param sample_percent: percent of their hash slots that were read; a smaller sample is part of a larger one.
    :param as_of_ms: time of the store's own clock when reading began.
    :param queues: ``None`` if the profile is not complete.
    :param is_forgotten: whether the rows of its queues have been dropped, so that it cannot be judged.
    """

    profile_id: str
    store: str
    target: str
    mode: str
    contents: bool
    cohort_count: int
    cohorts: tuple[int, ...]
    sample_percent: int
    session_limit: int
    default_ttl_s: int
    max_payload_bytes: int
    as_of_ms: int
    queues: int | None
    messages: int | None
    started_at: datetime
    finished_at: datetime | None
    is_forgotten: bool


@dataclass(frozen=True, kw_only=True)
class QualityRun:
    """A recorded quality run.

    :param numbers: totals: ``queues`` and ``messages`` that were judged, ``waiting`` messages of compacted and fan-out
        queues where these were read, ``unexpected`` queues by check, ``servers`` as they were read, and
        ``not_judged``: checks that ran only in part, because contents were not read, and ``senseless``: in words,
        checks that make no sense for a layout.
    """

    quality_run_id: str
    mode: str
    suites: tuple[str, ...]
    profile_ids: tuple[str, ...]
    verdict: Verdict
    numbers: Mapping[str, Any]
    started_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class TrendCell:
    """Result of a check in one run: that of its worst expectation."""

    status: Status
    severity: Severity
    unexpected_count: int


@dataclass(frozen=True, kw_only=True)
class TrendRun:
    """One run of a trend.

    :param cells: id of a check -> its result; checks that did not run are left out.
    """

    run: QualityRun
    cells: Mapping[str, TrendCell]


@dataclass(frozen=True, kw_only=True)
class FaultyQueue:
    """A queue with many faults.

    :param faults: column of ``queue_profiles`` -> number of faults.
    """

    client_hash: str
    cohort: int
    messages: int
    live: int
    dead: int
    payload_bytes: int
    faults: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class WorstQueue(FaultyQueue):
    """A queue with many faults, and where it is.

    :param client_id: set only on request.
    """

    client_id: str | None
    slot: int
    shard: str


@dataclass(frozen=True, kw_only=True)
class DepthBucket:
    """Queues that hold ``low`` to ``high`` live messages.

    :param high: ``None`` for the last bucket, which has no upper end.
    """

    low: int
    high: int | None
    queues: int
    messages: int


@dataclass(frozen=True, kw_only=True)
class ExpiryHour:
    """Messages that expire within an hour.

    :param hour_ms: start of the hour; 0 for messages that never expire.
    """

    hour_ms: int
    messages: int
    payload_bytes: int


class QualityStore:
    """Reads and writes the records of quality runs.

    Every method is one transaction. Methods may be called from many processes at once, each with its own connection.
    """

    def __init__(self, connection: Connection) -> None:
        """Use the caller's connection."""
        self._connection = connection

    # --- runs --------------------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        quality_run_id: str,
        mode: str,
        suites: Sequence[str],
        profile_ids: Sequence[str],
        numbers: Mapping[str, Any],
        started_at: datetime,
    ) -> None:
        """Record the start of a run; the results of an earlier run of the same id are deleted."""
        name = {"quality_run_id": quality_run_id}
        with translated_errors(self._connection), self._connection.transaction():
            self._execute(
                "save_run",
                name
                | {
                    "mode": mode,
                    "suites": list(suites),
                    "profile_ids": list(profile_ids),
                    "started_at": started_at,
                },
            )
            self._execute("delete_results", name)
            self._execute("save_numbers", name | {"numbers": Jsonb(dict(numbers))})

    def finish(
        self,
        *,
        quality_run_id: str,
        verdict: Verdict,
        results: Iterable[Finding],
        numbers: Mapping[str, Any],
    ) -> None:
        """Record the results and the verdict of a run."""
        name = {"quality_run_id": quality_run_id}
        with translated_errors(self._connection), self._connection.transaction():
            for result in results:
                # Results hold no client ids: readers of results may lack the right to know them.
                row = asdict(result.without_client_ids())
                given = {"examples": Jsonb(list(row["examples"])), "remedy_conf": Jsonb(dict(row["remedy_conf"]))}
                self._execute("save_result", name | row | given)
            self._execute("save_numbers", name | {"numbers": Jsonb(dict(numbers))})
            self._execute("finish_run", name | {"verdict": str(verdict)})

    def run(self, quality_run_id: str) -> QualityRun:
        """Return a quality run.

        :raises UsageError: when no run has this id; the message names the newest runs.
        """
        rows = self._rows("load_run", {"quality_run_id": quality_run_id})
        if not rows:
            newest = [each.quality_run_id for each in self.runs(limit=_KNOWN)]
            makes = "`queuekeeper quality run` makes one"
            raise UsageError(no_such("quality run", quality_run_id, newest=newest, makes=makes))
        return _run(rows[0])

    def runs(
        self,
        *,
        limit: int = 30,
        finished: bool = False,
        whole: bool = False,
        same_servers_as: str | None = None,
    ) -> tuple[QualityRun, ...]:
        """Return the runs that began last, the newest first.

        :param finished: leave out runs that have not finished.
        :param whole: leave out runs that read a part of the queues: one turn, chosen cohorts or a sample.
        :param same_servers_as: id of a run; return only runs that read one of the same servers.
        """
        wanted = {"maximum": limit, "finished": finished, "whole": whole, "same_servers_as": same_servers_as}
        return tuple(_run(row) for row in self._rows("known_runs", wanted))

    def whole_runs(self, *, limit: int = 1) -> tuple[QualityRun, ...]:
        """Return the newest finished runs that read all queues of the servers of the newest run.

        :returns: where there are none, the newest runs of its mode.
        """
        for newest in self.runs(limit=1, finished=True):
            same = newest.quality_run_id
            if whole := self.runs(limit=limit, finished=True, whole=True, same_servers_as=same):
                return whole
            found = self.runs(limit=limit, finished=True, same_servers_as=same)
            return tuple(run for run in found if run.mode == newest.mode)
        return ()

    def results(self, quality_run_id: str) -> tuple[Finding, ...]:
        """Return the result of each expectation, worst first.

        :raises UsageError: when there is no such run.
        """
        self.run(quality_run_id)
        found = []
        for row in self._rows("results", {"quality_run_id": quality_run_id}):
            values = dict(zip(_STORED, row, strict=True))
            values |= {
                "severity": Severity(values["severity"]),
                "status": Status(values["status"]),
                "examples": tuple(values["examples"]),
            }
            found.append(Finding(**values))
        return tuple(sorted(found, key=lambda result: result.urgency))

    def trend(self, *, runs: int = RUNS_SHOWN, same_servers_as: str | None = None) -> tuple[TrendRun, ...]:
        """Return the result of each check in the last finished runs, the oldest run first.

        :param same_servers_as: see :meth:`runs`.
        """
        chosen = self.runs(limit=runs, finished=True, same_servers_as=same_servers_as)[::-1]
        cells: dict[str, dict[str, TrendCell]] = {each.quality_run_id: {} for each in chosen}
        for run_id, check_id, severity, status, count in self._rows("trend", {"quality_run_ids": list(cells)}):
            cell = TrendCell(status=Status(status), severity=Severity(severity), unexpected_count=count)
            known = cells[run_id].get(check_id)
            if known is None or _weight(cell) > _weight(known):
                cells[run_id][check_id] = cell
        return tuple(TrendRun(run=each, cells=cells[each.quality_run_id]) for each in chosen)

    # --- profiles ----------------------------------------------------------------------------------------------

    def profiles(self, profile_ids: Sequence[str]) -> tuple[Profile, ...]:
        """Return profiles in the order of the ids.

        :raises UsageError: when no profile has one of the ids; the message names the newest profiles.
        """
        names = (
            "profile_id", "store", "target", "mode", "contents", "cohort_count", "cohorts", "sample_percent",
            "session_limit", "default_ttl_s", "max_payload_bytes", "as_of_ms", "queues", "messages", "started_at",
            "finished_at", "is_forgotten",
        )  # fmt: skip
        found: dict[str, Profile] = {}
        for row in self._rows("load_profiles", {"profile_ids": list(profile_ids)}):
            values = dict(zip(names, row, strict=True))
            found[values["profile_id"]] = Profile(**values | {"cohorts": tuple(values["cohorts"])})
        for profile_id in profile_ids:
            if profile_id not in found:
                newest = self.newest_profiles(limit=_KNOWN, finished=False)
                makes = "`queuekeeper quality profile` makes one"
                raise UsageError(no_such("profile", profile_id, newest=newest, makes=makes))
        return tuple(found[profile_id] for profile_id in profile_ids)

    def newest_profiles(self, *, store: str | None = None, limit: int = 1, finished: bool = True) -> tuple[str, ...]:
        """Return the ids of the profiles that began last, the newest first.

        :param store: return only profiles of this store.
        :param finished: leave out profiles that are not complete.
        """
        choice = {"store": store, "maximum": limit, "finished": finished}
        return tuple(profile_id for (profile_id,) in self._rows("known_profiles", choice))

    def worst_queues(self, profile_id: str, *, n: int = 20, show_client_ids: bool = False) -> tuple[WorstQueue, ...]:
        """Return the queues with the most faults, the worst first.

        :param show_client_ids: return client ids, too, not only their hashes.
        """
        return tuple(
            WorstQueue(
                client_id=queue["client_id"] if show_client_ids else None,
                **{name: queue[name] for name in _OF_QUEUE},
                faults={name: queue[name] for name in FAULTS if queue[name]},
            )
            for (queue,) in self._rows("worst_queues", {"profile_id": profile_id, "maximum": n})
        )

    def depth_histogram(self, profile_id: str) -> tuple[DepthBucket, ...]:
        """Return the numbers of queues by their live messages, in buckets that double in width."""
        counts = {
            bucket: (queues, messages)
            for bucket, queues, messages in self._rows(
                "depth_histogram", {"profile_id": profile_id, "lows": list(DEPTHS)}
            )
        }
        last = max(counts, default=0)
        highs = [low - 1 for low in DEPTHS[1:]] + [None]
        return tuple(
            DepthBucket(
                low=low, high=highs[at], queues=counts.get(at + 1, (0, 0))[0], messages=counts.get(at + 1, (0, 0))[1]
            )
            for at, low in enumerate(DEPTHS[:last])
        )

    def expiry_hours(self, profile_id: str) -> tuple[ExpiryHour, ...]:
        """Return the messages that expire in each hour, in order."""
        return tuple(
            ExpiryHour(hour_ms=hour_ms, messages=messages, payload_bytes=payload_bytes)
            for hour_ms, messages, payload_bytes in self._rows("expiry_hours", {"profile_id": profile_id})
        )

    # --- inside ------------------------------------------------------------------------------------------------

    def _execute(self, name: str, parameters: Mapping[str, Any]) -> None:
        self._connection.execute(statement(f"quality/{name}"), parameters)

    def _rows(self, name: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return rows_of(self._connection, f"quality/{name}", parameters)


def _run(row: tuple[Any, ...]) -> QualityRun:
    quality_run_id, mode, suites, profile_ids, verdict, numbers, started_at, finished_at = row
    return QualityRun(
        quality_run_id=quality_run_id,
        mode=mode,
        suites=tuple(suites),
        profile_ids=tuple(profile_ids),
        verdict=Verdict(verdict),
        numbers=numbers,
        started_at=started_at,
        finished_at=finished_at,
    )


def _weight(cell: TrendCell) -> tuple[int, int, int]:
    """Return how bad a cell is: a failure without an owner outweighs a known issue."""
    rank = {Status.PASSED: 0, Status.KNOWN: 1, Status.FAILED: 2, Status.BROKEN: 3}[cell.status]
    return rank, cell.severity.rank, cell.unexpected_count
