"""Judges profiles by suites and keeps the findings."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar

from queuekeeper.clock import Pace
from queuekeeper.config import Settings
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.facts import plain
from queuekeeper.identity import hash_key
from queuekeeper.jobs.checks import Priority, Severity, Store
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.keyspace import format_cohorts
from queuekeeper.maintenance.events.broker import read_event_broker
from queuekeeper.postgres import Connection, connect, rows_of, translated_errors
from queuekeeper.quality.judge.compacted_queues import profile_compacted_queues
from queuekeeper.quality.judge.fanout_queues import profile_fanout_queues
from queuekeeper.quality.judge.incidents import Incidents, Look
from queuekeeper.quality.judge.known_issues import KnownIssue, KnownIssues
from queuekeeper.quality.judge.live_queues import PARTS, QueueReading, QueueSums, part_of_turn
from queuekeeper.quality.judge.partitioned_tables import read_partitioned_tables
from queuekeeper.quality.judge.store import Profile, QualityStore, Verdict
from queuekeeper.quality.judge.suites import Suite, load
from queuekeeper.quality.judge.validation import SHOWN_VALUES, check_expectations, validate
from queuekeeper.quality.profile.servers import read_servers, redis_target
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.sessions.pages import Layout
from queuekeeper.sql_statements import statement

SERVERS_SUITE = "redis_servers"
COMPARISON_SUITE = "source_against_target"
EVENT_SUITES = ("events", "partitions")
"""Suites that read PostgreSQL when they run, and need no profile."""
QUEUE_SUITES = {"compacted": profile_compacted_queues, "fanout": profile_fanout_queues}
"""Suites that read Redis when they run, and need no profile."""

_PROFILES = "`queuekeeper quality profile`"
_QUARANTINE = ("origin", "reason", "open", "replayed", "oldest_ms")


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """Result of a quality run, which is also kept in ``quality_runs`` and ``quality_results``.

    :param stores: stores whose profiles were judged.
    :param results: every expectation that was judged, worst first.
    :param not_judged: checks that ran only in part, because the profiles had read no contents.
    :param senseless: which checks make no sense for sessions of a layout that is there, and why.
    :param overdue: known issues of failed checks whose last day has passed, so that they excuse nothing.
    """

    quality_run_id: str
    verdict: Verdict
    mode: str
    suites: tuple[str, ...]
    profile_ids: tuple[str, ...]
    stores: tuple[str, ...]
    results: tuple[Finding, ...]
    not_judged: tuple[str, ...]
    senseless: tuple[str, ...]
    overdue: tuple[KnownIssue, ...]
    queues: int
    messages: int
    seconds: float
    at_length: ClassVar[tuple[str, ...]] = ("results", "overdue")

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON; only its results name clients, and by hash."""
        return {
            **vars(self),
            "checks": len(self.results),
            "findings": [finding.summary() for finding in self.findings],
            "overdue": [plain(issue) | {"is_overdue": True} for issue in self.overdue],
        }

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings that did not pass and have no owner, worst first."""
        return tuple(result for result in self.results if result.status in {Status.FAILED, Status.BROKEN})

    def count(self, priority: Priority) -> int:
        """Return the number of failed expectations of a priority."""
        return sum(result.priority is priority for result in self.findings)


def suites_for(stores: Collection[str], *, servers: bool, compare: bool = False) -> tuple[str, ...]:
    """Return the suites that can judge profiles of these stores.

    :param stores: profiled stores, and ``compacted`` and ``fanout`` for queues of these kinds, which need no profile.
        An empty collection stands for the event broker and partitioned tables.
    :param servers: whether the settings of the Redis servers can be read.
    :param compare: whether to compare source and target, which agree after a migration until a broker uses the target.
    """
    live = [suite for suite in QUEUE_SUITES if suite in stores]
    chosen = [f"sessions_{store}" for store in Store if store in stores]
    if not chosen:
        return tuple(live) or EVENT_SUITES
    more = [*([SERVERS_SUITE] if servers else []), "quarantine", *([COMPARISON_SUITE] if compare else [])]
    return (*chosen, *more, *live)


def judging(
    stores: Collection[str], *, compare: bool = False, named: Sequence[str] = (), of_server: bool = True
) -> tuple[tuple[str, ...], bool]:
    """Check and return the suites of a run, and whether the settings of the Redis servers are read.

    :param stores: as of :func:`suites_for`.
    :param named: suites to run; empty runs all that fit.
    :param of_server: whether sessions in Redis were read on a server, and not in a snapshot.
    :raises UsageError: as :func:`check_suites`.
    """
    on_redis = {*([Store.REDIS] if of_server else []), *QUEUE_SUITES}
    servers = not on_redis.isdisjoint([*stores, *named])
    names = tuple(named) or suites_for(stores, servers=servers, compare=compare)
    if compare and COMPARISON_SUITE not in names:
        names = (*names, COMPARISON_SUITE)
    check_suites(names, stores=stores, servers=servers)
    return names, servers


def check_suites(names: Sequence[str], *, stores: Collection[str], servers: bool) -> list[Suite]:
    """Return suites that can judge profiles of these stores; call this before the stores are read, which takes long.

    :param names: names of files in ``expectations/``.
    :param servers: whether the settings of the Redis servers can be read.
    :raises UsageError: when a suite does not exist, is written wrongly, or has nothing to judge.
    """
    if not names:
        raise UsageError("no suite is named: a run without checks would always pass")
    chosen = [load(name) for name in names]
    for suite in chosen:
        if not suite.rows:
            raise UsageError(f"suite {suite.name} does not judge queues: it judges a table that its caller names")
        for store in suite.stores:
            if store not in stores:
                raise UsageError(
                    f"suite {suite.name} needs a profile of {store}: make one by {_PROFILES}, or leave the suite out"
                )
        if suite.name in (SERVERS_SUITE, *QUEUE_SUITES) and not servers:
            raise UsageError(
                f"suite {suite.name} reads settings of the Redis servers: give their address, or leave the suite out"
            )
        check_expectations(suite)
    return chosen


def run_quality(
    *,
    postgres_url: str,
    profile_ids: Sequence[str],
    suites: Sequence[str],
    quality_run_id: str,
    now: datetime,
    redis_url: str | None = None,
    key_prefix: str = "",
    turn: int | None = None,
    throttle_references_per_s: int | None = None,
    show_client_ids: bool = False,
    data_docs: Path | None = None,
) -> QualityReport:
    """Judge profiles by suites; the results of an earlier run of the same id are replaced.

    :param profile_ids: complete profiles, at most one per store; empty for suites that need none.
    :param suites: names of files in ``expectations/``; see :func:`suites_for`.
    :param redis_url: address of the Redis servers; ``None`` leaves Redis out.
    :param key_prefix: prefix of every Redis key, for compacted and fan-out queues and for forms of remedies.
    :param turn: part of the compacted or fan-out queues to read; ``None`` reads all.
    :param throttle_references_per_s: members of these queues to read per second; ``None`` sets no limit.
    :param show_client_ids: show client ids in examples, not only their hashes.
    :param data_docs: folder for Great Expectations' pages of suite and result; ``None`` writes none.
    :raises UsageError: when a suite or profile does not exist, or a suite has nothing to judge.
    :raises RefusedError: when a profile is not complete, or its queues have been dropped.
    """
    began = time.monotonic()
    with connect(postgres_url, autocommit=True) as connection:
        store = QualityStore(connection)
        profiles = {Store(profile.store): profile for profile in store.profiles(profile_ids)}
        chosen = check_suites(suites, stores=profiles, servers=redis_url is not None)
        _check_choice(chosen, profiles, profile_ids)
        redis, servers = ("", []) if redis_url is None else _servers(redis_url, key_prefix=key_prefix)
        is_fast = turn is not None or any(profile.mode == "fast" for profile in profiles.values())
        mode = "fast" if is_fast else "full"
        numbers: dict[str, Any] = {
            "queues": sum(profile.queues or 0 for profile in profiles.values()),
            "messages": sum(profile.messages or 0 for profile in profiles.values()),
            "servers": servers,
            "events": list(read_event_broker(connection)) if "events" in suites else [],
            "partitions": list(read_partitioned_tables(connection, now_ms=round(1_000 * now.timestamp())))
            if "partitions" in suites
            else [],
            "quarantine": _quarantine(connection),
        }
        store.begin(
            quality_run_id=quality_run_id,
            mode=mode,
            suites=suites,
            profile_ids=profile_ids,
            numbers=numbers,
            started_at=now,
        )
        for name in QUEUE_SUITES.keys() & set(suites):
            sums = _read_queues(
                name,
                connection,
                redis_url or "",
                quality_run_id=quality_run_id,
                key_prefix=key_prefix,
                now_ms=round(1_000 * now.timestamp()),
                turn=turn,
                throttle_references_per_s=throttle_references_per_s,
            )
            numbers["queues"] += sums.queues
            numbers["messages"] += sums.messages
        in_redis = profiles.get(Store.REDIS)
        layouts = {
            Layout(layout)
            for (layout,) in (
                rows_of(connection, "quality/profiled_layouts", {"profile_id": in_redis.profile_id}) if in_redis else ()
            )
        }
        waiting = {}
        if QUEUE_SUITES.keys() & set(suites):
            rows = rows_of(connection, "quality/waiting_queues", {"quality_run_id": quality_run_id})
            waiting = {"waiting": sum(messages for _, _, messages, *_ in rows)}
        issues = KnownIssues(connection).all()
    judge = _Judge(
        postgres_url=postgres_url,
        profiles=profiles,
        # An empty store is judged as it was before there was another layout.
        layouts=layouts or {Layout.TBMQ},
        quality_run_id=quality_run_id,
        key_prefix=key_prefix,
        issues=issues,
        today=now.astimezone(UTC).date(),
        show_client_ids=show_client_ids,
        data_docs=data_docs,
    )
    looks = {suite.name: _look(suite, profiles=profiles, redis=redis, turn=turn) for suite in chosen}
    by_suite = {suite.name: judge.judge(suite, place=looks[suite.name].place) for suite in chosen}
    results = sorted((result for found in by_suite.values() for result in found), key=lambda result: result.urgency)
    verdict = _verdict(results)
    not_judged = sorted(judge.not_judged, key=lambda number: int(number[1:]))
    unexpected: dict[str, int] = {}
    for result in results:
        unexpected[result.check_id] = max(unexpected.get(result.check_id, 0), result.unexpected_count)
    with connect(postgres_url, autocommit=True) as connection, connection.transaction():
        for suite in chosen:
            Incidents(connection).note(
                looks[suite.name],
                # Where a layout has no sessions any more, nothing is left of what was wrong with them.
                (*by_suite[suite.name], *judge.of_no_session(suite)),
                quality_run_id=quality_run_id,
                at=now,
                not_judged=not_judged,
            )
            Incidents(connection).close_unjudged(
                looks[suite.name],
                suite=suite.name,
                checks=[each.check for each in suite.expectations],
                quality_run_id=quality_run_id,
                at=now,
            )
        QualityStore(connection).finish(
            quality_run_id=quality_run_id,
            verdict=verdict,
            results=results,
            numbers={
                "unexpected": unexpected,
                "not_judged": not_judged,
                "senseless": judge.senseless,
                "queues": numbers["queues"],
                "messages": numbers["messages"],
                **waiting,
            },
        )
    failed = [result for result in results if result.status is Status.FAILED]
    return QualityReport(
        quality_run_id=quality_run_id,
        verdict=verdict,
        mode=mode,
        suites=tuple(suites),
        profile_ids=tuple(profile_ids),
        stores=tuple(profiles),
        results=tuple(results),
        not_judged=tuple(not_judged),
        senseless=tuple(judge.senseless),
        overdue=tuple(
            issue
            for issue in issues
            if issue.is_overdue(judge.today) and any(issue.covers(each.check_id, each.place) for each in failed)
        ),
        queues=numbers["queues"],
        messages=numbers["messages"],
        seconds=time.monotonic() - began,
    )


def _check_choice(chosen: Sequence[Suite], profiles: Mapping[Store, Profile], profile_ids: Sequence[str]) -> None:
    """Refuse a choice that cannot be judged, before anything is written."""
    if len(profiles) != len(profile_ids):
        raise UsageError("two profiles are of the same store: name at most one per store")
    for profile in profiles.values():
        if profile.finished_at is None:
            raise RefusedError(
                f"profile {profile.profile_id} is not complete: wait for it, or make another by {_PROFILES}"
            )
        if profile.is_forgotten:
            raise RefusedError(
                f"the queues of profile {profile.profile_id} have been dropped since, as newer ones of the same kind "
                "are there: judge one of those, or make another by "
                "`queuekeeper quality profile`"
            )
    for suite in chosen:
        if suite.name == COMPARISON_SUITE:
            source, target = profiles[Store.POSTGRES], profiles[Store.REDIS]
            if _share(source) != _share(target):
                raise UsageError(
                    f"suite {suite.name} needs profiles of the same cohorts and sample: {source.profile_id} and "
                    f"{target.profile_id} were made of others"
                )


def _look(suite: Suite, *, profiles: Mapping[Store, Profile], redis: str, turn: int | None) -> Look:
    """Return the place and the cohorts that a suite reads."""
    if suite.stores:
        read = [profiles[store] for store in suite.stores]
        return Look(
            place=", ".join(profile.target for profile in read),
            cohorts=read[0].cohorts,
            cohort_count=read[0].cohort_count,
            sample_percent=read[0].sample_percent,
        )
    if suite.name in QUEUE_SUITES:
        parts = tuple(range(PARTS)) if turn is None else (part_of_turn(turn),)
        return Look(place=redis, cohorts=parts, cohort_count=PARTS)
    return Look(place=redis if suite.name == SERVERS_SUITE else "control database")


def _share(profile: Profile) -> tuple[object, ...]:
    return profile.cohort_count, profile.cohorts, profile.sample_percent


def _servers(redis_url: str, *, key_prefix: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the place of the servers, and the settings of each."""
    client = connect_redis(redis_url)
    try:
        return redis_target(client, redis_url=redis_url, key_prefix=key_prefix), list(read_servers(client))
    finally:
        client.close()


def _read_queues(
    suite: str,
    connection: Connection,
    redis_url: str,
    *,
    quality_run_id: str,
    key_prefix: str,
    now_ms: int,
    turn: int | None,
    throttle_references_per_s: int | None,
) -> QueueSums:
    client = connect_redis(redis_url)
    try:
        reading = QueueReading(
            client=client,
            quality_run_id=quality_run_id,
            prefix=key_prefix,
            now_ms=now_ms,
            hash_key=hash_key(Settings()),
            part=None if turn is None else part_of_turn(turn),
            pace=Pace(lambda: throttle_references_per_s),
        )
        return QUEUE_SUITES[suite](connection, reading)
    finally:
        client.close()


def _quarantine(connection: Connection) -> list[dict[str, Any]]:
    with translated_errors(connection):
        rows = connection.execute(statement("quality/quarantine_sums")).fetchall()
    return [dict(zip(_QUARANTINE, row, strict=True)) for row in rows]


def _verdict(results: Sequence[Finding]) -> Verdict:
    """Return the verdict on results; a broken check proves nothing, so it fails the run."""
    failed = {result.severity for result in results if result.status is Status.FAILED}
    if Severity.CRITICAL in failed or any(result.status is Status.BROKEN for result in results):
        return Verdict.FAILED
    return Verdict.WARNED if Severity.WARNING in failed else Verdict.PASSED


class _Judge:
    """Runs suites on the profiles of one quality run."""

    def __init__(
        self,
        *,
        postgres_url: str,
        profiles: Mapping[Store, Profile],
        layouts: Collection[Layout],
        quality_run_id: str,
        key_prefix: str,
        issues: Sequence[KnownIssue],
        today: date,
        show_client_ids: bool,
        data_docs: Path | None,
    ) -> None:
        self._postgres_url = postgres_url
        self._profiles = profiles
        self._layouts = layouts
        self._quality_run_id = quality_run_id
        self._key_prefix = key_prefix
        self._issues = [issue for issue in issues if not issue.is_overdue(today)]
        self._show_client_ids = show_client_ids
        self._data_docs = data_docs
        self.today = today
        self.not_judged: set[str] = set()
        self.senseless: list[str] = []

    def judge(self, suite: Suite, *, place: str) -> list[Finding]:
        """Return the findings of a suite at a place."""
        if Store.REDIS in suite.stores:
            self.senseless += suite.senseless(self._layouts)
            suite = suite.for_layouts(self._layouts)
        read = all(self._profiles[store].contents for store in suite.stores)
        self.not_judged |= {each.check for each in suite.expectations if each.needs_contents and not read}
        report = validate(
            suite if read else suite.without_contents(),
            postgres_url=self._postgres_url,
            query=self._query(suite),
            show_client_ids=self._show_client_ids,
            # Fetch as many more examples as known issues may cover, so that queues without an owner are left.
            shown=SHOWN_VALUES + len({issue.client_hash for issue in self._issues if issue.client_hash}),
            data_docs=self._data_docs,
        )
        return [self._judged(suite, found, place=place) for found in report.results]

    def of_no_session(self, suite: Suite) -> list[Finding]:
        """Return, as passed, what the suite asks of sessions in layouts of which there are none."""
        if Store.REDIS not in suite.stores:
            return []
        left = suite.for_layouts(self._layouts).expectations
        return [
            Finding(check_id=each.check, severity=each.severity, description=each.description, status=Status.PASSED)
            for each in suite.expectations
            if each not in left
        ]

    def _query(self, suite: Suite) -> str:
        values = {"quality_run_id": self._quality_run_id} | {
            f"{store}_profile_id": profile.profile_id for store, profile in self._profiles.items()
        }
        # SQLAlchemy gives some signs in the text a meaning of their own; hex digits have none.
        literals = {
            name: f"convert_from(decode('{value.encode().hex()}', 'hex'), 'UTF8')" for name, value in values.items()
        }
        return statement(f"quality/{suite.rows}") % literals

    def _judged(self, suite: Suite, found: Finding, *, place: str) -> Finding:
        """Return a finding with its place, its status by known issues, and its remedy."""
        known = self._known_hashes(found.check_id, place)
        status = _status(found, known)
        examples = _unknown(found, known if status is Status.FAILED else None)
        finding = replace(found, status=status, examples=examples[:SHOWN_VALUES], place=place)
        if finding.passed or not suite.is_mended:
            return finding
        return finding.with_remedy(
            quality_run_id=self._quality_run_id, key_prefix=self._key_prefix or None, **self._choice(suite)
        )

    def _known_hashes(self, check_id: str, place: str) -> set[str] | None:
        """Return the client hashes that known issues of a check cover; ``None`` means all queues."""
        known = [issue.client_hash for issue in self._issues if issue.covers(check_id, place)]
        return None if None in known else {name for name in known if name is not None}

    def _choice(self, suite: Suite) -> dict[str, Any]:
        """Return the form values of a remedy: which queues to read, and the limits that they were judged by."""
        profile = self._profiles.get(Store.REDIS)
        if profile is None:
            return {}
        choice = {"limit": profile.session_limit, "default_ttl_s": profile.default_ttl_s}
        for store in suite.stores:
            read = self._profiles[store]
            if len(read.cohorts) < read.cohort_count:
                return choice | {"cohorts": format_cohorts(read.cohorts)}
        return choice | {"cohorts": "all"}


def _status(found: Finding, known: set[str] | None) -> Status:
    """Return the finding's status: known, if known issues cover every queue that it found."""
    if found.status is not Status.FAILED:
        return found.status
    whole = len(found.examples) == found.unexpected_count > 0
    return Status.KNOWN if known is None or (whole and not _unknown(found, known)) else Status.FAILED


def _unknown(found: Finding, known: set[str] | None) -> tuple[Mapping[str, Any], ...]:
    """Return the examples that no known issue covers; all of them, where issues cover every queue or none."""
    return tuple(each for each in found.examples if each.get("client_hash") not in (known or ()))
