"""Collects what compacted queues may lose by their retention, in bounded steps, and looks again whether it did.

The registry says which queues are due, so that no names of keys are looked through; a part of it that was last
collected by other rules is looked at as a whole. What may go is decided by the queue's own script, twice: when it is
found, and again when it is removed, so that a newer value of a key never goes. What is to be removed is on disk before
it is. A run that is killed goes on with the part of the registry it was in.
"""

from __future__ import annotations

import logging
import random
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, asdict, dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import Any

from queuekeeper import __version__
from queuekeeper.clock import Clock, Pace
from queuekeeper.compacted.model import CollectReport, DuePage, DueRow
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.errors import QueuekeeperError, RefusedError, ScriptError, UsageError
from queuekeeper.jobs.pace import TimeIsUp, run_pace
from queuekeeper.jobs.shares import check_servers, parts_of, server_clock
from queuekeeper.jobs.store import MaintenanceRun, MaintenanceRuns, RunState, ShardProgress
from queuekeeper.jobs.undo import UndoFile, undo_path
from queuekeeper.jobs.writer import Writer
from queuekeeper.keyspace import COMPACTED_REGISTRIES
from queuekeeper.maintenance.compacted_gc_model import (
    KIND,
    CollectionCounts,
    CollectionOutcome,
    CollectionParameters,
    CollectionPlan,
    CollectionReport,
    DueQueue,
)
from queuekeeper.maintenance.compacted_gc_undo import undo_mark
from queuekeeper.maintenance.compacted_registry import QUEUES_PER_STEP, Registry
from queuekeeper.redis_client import RedisClient

ROWS_PER_STEP = 100
"""Finding and removing so many takes a server about a millisecond each, also in a queue of 200,000."""
PAUSE_S = 0.01
"""Between steps of 100 queues, so that other clients of a busy server come in."""

PROOF_QUEUES_PER_PART = 1_000
"""The second look is at so many queues of each of the 64 parts of the registry; where there are more, it says so."""

RENEW_S = 20.0
LOOK_AGAIN_MS = 86_400_000
"""A queue is looked at again after so long at the latest, or sooner if its messages live shorter."""

LOOK_AHEAD_MS = 3_600_000
"""Queues due within so long are looked at, too: what waits for an acknowledgement is due as soon as that has come."""

_WORST = 10

_log = logging.getLogger(__name__)


def plan_collection(
    client: RedisClient,
    *,
    parameters: CollectionParameters,
    clock: Clock | None = None,
    name_client: Callable[[str], str] = lambda _: "",
    say: Callable[[str], None] = _log.info,
) -> CollectionPlan:
    """Count what a collection would remove. Nothing is written.

    :param clock: none for the server's.
    :param name_client: gives the name of a client for reports, a keyed hash of its id.
    :param say: told what is wrong with queues that cannot be read.
    :raises RefusedError: when a server is too old.
    """
    check_servers(client)
    now_ms = (clock or server_clock(client))()
    pace = Pace(lambda: parameters.max_operations_per_s)
    look = _Collector(Writer(client, counts_only=True), parameters, now_ms=now_ms, pace=pace, say=say)
    started = time.monotonic()
    for part in range(COMPACTED_REGISTRIES):
        for step in look.due(part):
            look.collect(step)
    return CollectionPlan(
        parameters=parameters,
        code_version=__version__,
        as_of_ms=now_ms,
        registered=sum(look.registry.count(part) for part in range(COMPACTED_REGISTRIES)),
        complete=not look.counts.broken_queues,
        counts=look.counts,
        worst=tuple(
            DueQueue(
                client_hash=name_client(client_id),
                messages=counts.messages,
                unacked=counts.unacked,
                freed_bytes=counts.freed_bytes,
            )
            for client_id, counts in look.worst
        ),
        seconds=round(time.monotonic() - started, 3),
    )


def save_collection_plan(runs: MaintenanceRuns, plan: CollectionPlan) -> MaintenanceRun:
    """Store a plan, so that its shares can be collected."""
    found = asdict(plan)
    return runs.save_plan(
        kind=KIND,
        parameters=found.pop("parameters"),
        plan=found,
        operations_per_s=plan.parameters.max_operations_per_s,
    )


def load_collection_plan(runs: MaintenanceRuns, run_id: str) -> CollectionPlan:
    """Return a stored plan.

    :raises UsageError: when there is none of this id, or it is of another kind.
    """
    run = runs.load(run_id)
    if run.kind != KIND:
        raise UsageError(f"run {run_id} is a {run.kind}, not a collection of compacted queues")
    plan = dict(run.plan)
    counts = CollectionCounts(**plan.pop("counts"))
    worst = tuple(DueQueue(**each) for each in plan.pop("worst"))
    return CollectionPlan(parameters=CollectionParameters(**run.parameters), counts=counts, worst=worst, **plan)


def collect_share(
    client: RedisClient,
    *,
    runs: MaintenanceRuns,
    run_id: str,
    share: str,
    undo_directory: Path,
    clock: Clock | None = None,
    uniform: Callable[[float, float], float] = random.uniform,
    say: Callable[[str], None] = _log.info,
) -> CollectionReport:
    """Collect one share of a plan. Repeated, it goes on where it was stopped or killed.

    :param share: one of the plan's.
    :param undo_directory: folder for the undo file, which lists what was removed.
    :param clock: none for the server's; it tells when the collection was finished.
    :param uniform: chooses how long the start is put off.
    :param say: told how far it has come.
    :raises RefusedError: when another process works on the share, or Redis refuses.
    :raises StalePlan: when the plan is too old, or was made by another release.
    """
    plan = load_collection_plan(runs, run_id)
    known = plan.parameters.share_names()
    if share not in known:
        raise UsageError(f"run {run_id} has no share {share!r}: it has {', '.join(known)}")
    check_servers(client)
    now = clock or server_clock(client)
    runs.check_current(run_id, now_ms=now())
    with runs.shard_lock(run_id, share):
        before = runs.shard_progress(run_id, share)
        path = undo_path(undo_directory, run_id=run_id, shard=share)
        work = _ShareWork(
            client=client,
            runs=runs,
            run_id=run_id,
            plan=plan,
            share=share,
            clock=now,
            say=say,
            counts=CollectionCounts(**before.counts),
        )
        stopped = ""
        started = time.monotonic()
        if not before.done:
            runs.set_state(run_id, RunState.RUNNING)
            time.sleep(uniform(0.0, float(plan.parameters.max_jitter_s)))
            header = {"kind": KIND, "maintenance_run_id": run_id, "share": share}
            try:
                with UndoFile(path, header | {"values": plan.parameters.keep_values}) as undo:
                    work.run(int(before.cursor) if before.updated_at else parts_of(share).start, undo)
            except TimeIsUp as up:
                stopped = str(up)
                runs.set_state(run_id, RunState.STOPPED)
            except Exception:
                runs.set_state(run_id, RunState.FAILED)
                raise
    if not open_shares(runs, run_id, plan):
        runs.set_state(run_id, RunState.DONE)
    return CollectionReport(
        maintenance_run_id=run_id,
        share=share,
        done=not stopped,
        stopped=stopped,
        counts=work.counts,
        seconds=round(time.monotonic() - started, 3),
        undo_file=str(path) if work.counts.messages else "",
    )


def open_shares(runs: MaintenanceRuns, run_id: str, plan: CollectionPlan) -> tuple[str, ...]:
    """Return the shares that were not gone through to the end."""
    done = {each.shard for each in runs.progress(run_id) if each.done}
    return tuple(share for share in plan.parameters.share_names() if share not in done)


def report_collection(
    client: RedisClient,
    *,
    runs: MaintenanceRuns,
    run_id: str,
    dry_run: bool,
    clock: Clock | None = None,
    say: Callable[[str], None] = _log.info,
) -> CollectionOutcome:
    """Look at the queues a second time, whatever the registry says of them, and keep the outcome with the run.

    :param dry_run: nothing was to be collected: there is no second look.
    """
    plan = load_collection_plan(runs, run_id)
    counts = CollectionCounts()
    for each in runs.progress(run_id):
        counts.add(CollectionCounts(**each.counts))
    registry = Registry(client, plan.parameters.key_prefix)
    left, proved = (None, False) if dry_run else _second_look(client, plan, say=say)
    outcome = CollectionOutcome(
        maintenance_run_id=run_id,
        dry_run=dry_run,
        plan=plan,
        counts=counts,
        left=left,
        proved=proved,
        open_shares=() if dry_run else open_shares(runs, run_id, plan),
        finished_ms=registry.finished_ms(),
        generated_at_ms=(clock or server_clock(client))(),
    )
    kept = asdict(outcome)
    del kept["plan"]
    runs.save_report(run_id, kept | {"clean": outcome.clean, "moved_on": outcome.moved_on})
    return outcome


# --- inside ----------------------------------------------------------------------------------------------------------


def _second_look(
    client: RedisClient, plan: CollectionPlan, *, say: Callable[[str], None]
) -> tuple[CollectionCounts, bool]:
    parameters = plan.parameters
    pace = Pace(lambda: parameters.max_operations_per_s)
    look = _Collector(Writer(client, counts_only=True), parameters, now_ms=plan.as_of_ms, pace=pace, say=say)
    proved = True
    for part in range(COMPACTED_REGISTRIES):
        looked_at = 0
        for step in look.every(part):
            if looked_at >= PROOF_QUEUES_PER_PART:
                proved = False
                break
            looked_at += len(step)
            look.collect(step)
    return look.counts, proved and not look.counts.broken_queues


@dataclass
class _Collector:
    """Goes through queues and removes what is due, or counts it; the writer makes the difference.

    :ivar counts: what was removed, or is to be, so far.
    :ivar stay: called before each page.
    """

    writer: Writer
    parameters: CollectionParameters
    _: KW_ONLY
    now_ms: int
    pace: Callable[[int], None]
    say: Callable[[str], None]
    counts: CollectionCounts = field(default_factory=CollectionCounts)
    stay: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        prefix = self.parameters.key_prefix
        self.registry = Registry(self.writer.client, prefix)
        self.queues = CompactedQueues(self.writer.client, prefix, counts_only=self.writer.counts_only)
        self._found: list[tuple[str, CollectionCounts]] = []
        self._settled: dict[str, Any] | None = None

    @property
    def worst(self) -> list[tuple[str, CollectionCounts]]:
        """The clients of the queues in which most was found, worst first."""
        return self._found

    def due(self, part: int) -> Iterator[list[tuple[bytes, int]]]:
        """Yield the queues of a part in which something may be due, in steps."""
        if self._looks_at_all(part):
            yield from self.every(part)
            return
        found: list[tuple[bytes, int]] = []
        for step in self.every(part):
            found += [queue for queue in step if queue[1] <= self.now_ms + LOOK_AHEAD_MS]
            while len(found) >= QUEUES_PER_STEP:
                yield found[:QUEUES_PER_STEP]
                del found[:QUEUES_PER_STEP]
        if found:
            yield found

    def _looks_at_all(self, part: int) -> bool:
        """Tell whether the registry does not say what is due by these rules: its times are by those of others."""
        beat = self.registry.heartbeat(part)
        return not self.parameters.is_regular or beat is None or beat.retention != self.parameters.retention

    def every(self, part: int) -> Iterator[list[tuple[bytes, int]]]:
        """Yield all queues of a part, in steps."""
        return self.registry.every(part)

    def collect(self, step: list[tuple[bytes, int]]) -> list[tuple[bytes, int, int]]:
        """Collect some queues; return those that are done, with the time at which each is due again."""
        rearmed: list[tuple[bytes, int, int]] = []
        for raw, due_ms in step:
            client_id = wanted(raw, self.parameters, self.counts)
            if client_id is None:
                continue
            found = CollectionCounts(queues=1)
            try:
                rearmed.append((raw, due_ms, self._collect_queue(client_id, found)))
            except (ScriptError, UsageError) as error:
                note_broken(found, error, self.say)
            finally:
                self.counts.add(found)
            if found.messages:
                self._found = nlargest(_WORST, [*self._found, (client_id, found)], key=lambda each: each[1].messages)
        self._note()
        return rearmed

    def _collect_queue(self, client_id: str, found: CollectionCounts) -> int:
        """Collect one queue, and return when it is to be looked at again."""
        mark: dict[str, Any] = {}
        latest_ms = LOOK_AGAIN_MS
        next_due_ms: int | None = None
        for page, rows in self.pages(
            client_id, with_values=self.parameters.keep_values and not self.writer.counts_only
        ):
            self.stay()
            latest_ms = min(LOOK_AGAIN_MS, page.retention.retention_ms, page.retention.tombstone_ms)
            next_due_ms = page.next_due_ms
            if rows:
                mark = mark or self._mark(client_id)
                self._note(mark | {"rows": [_line(row) for row in rows]})
                report = self._collect_rows(client_id, rows, found)
                self._settled = mark | {"kept": report.kept_sequences}
                mark = mark | {"collected": mark["collected"] + report.collected}
                next_due_ms = report.next_due_ms
        if mark:
            found.due_queues += 1
        elif not self.writer.counts_only:
            # Records of producers that have long gone are removed along the way; nobody counts them.
            next_due_ms = self._collect_rows(client_id, [], found).next_due_ms
        # Nothing that comes from now on is due before.
        latest_ms += self.now_ms + 1
        return max(self.now_ms + 1, latest_ms if next_due_ms is None else min(latest_ms, next_due_ms))

    def _mark(self, client_id: str) -> dict[str, Any]:
        """Return what the undo file says of a queue; it has none where nothing is noted."""
        return {"collected": 0} if self.writer.counts_only else undo_mark(self.queues.inspect(client_id))

    def _collect_rows(self, client_id: str, rows: list[DueRow], found: CollectionCounts) -> CollectReport:
        report = self.queues.collect(
            client_id,
            retention=self.parameters.retention,
            rows=rows,
            override=self.parameters.override,
            now_ms=self.now_ms,
        )
        found.messages += report.collected
        found.unacked += report.unacked
        found.tombstones += report.tombstones
        found.freed_bytes += report.size_bytes
        found.kept += report.kept
        return report

    def _note(self, line: dict[str, Any] | None = None) -> None:
        """Note what is about to go, and before it what became of the line before."""
        lines = [each for each in (self._settled, line) if each is not None]
        if lines:
            self.writer.note(lines)
        self._settled = None

    def pages(self, client_id: str, *, with_values: bool) -> Iterator[tuple[DuePage, list[DueRow]]]:
        """Yield what is due in a queue, page by page; then the rows of the page without what the filter leaves."""
        after_sequence = 0
        while True:
            found = self.queues.find_due(
                client_id,
                retention=self.parameters.retention,
                override=self.parameters.override,
                after_sequence=after_sequence,
                limit=ROWS_PER_STEP,
                with_values=with_values,
                now_ms=self.now_ms,
            )
            self.pace(1 + found.looked_at)
            yield found, [row for row in found.rows if self.parameters.wants_key(row.key)]
            after_sequence = found.next_after_sequence
            if not found.more:
                return


def wanted(raw: bytes, parameters: CollectionParameters, counts: CollectionCounts) -> str | None:
    """Return the client of a queue that is to be looked at; none for others, of which broken names are counted."""
    try:
        client_id = raw.decode()
    except UnicodeDecodeError:
        counts.broken_queues += 1
        return None
    return client_id if parameters.wants_client(client_id) else None


def note_broken(counts: CollectionCounts, error: QueuekeeperError, say: Callable[[str], None]) -> None:
    """Count a queue that cannot be collected, and say why; one such queue does not stop the others."""
    counts.broken_queues += 1
    # The sentence of a script names no client; a key of the wrong type would.
    say(f"a queue cannot be collected, `queuekeeper quality run --store compacted` finds it: {type(error).__name__}")


@dataclass
class _ShareWork:
    """One call of the collection on one share.

    :ivar counts: what was done, by earlier calls of the run too.
    """

    client: RedisClient
    runs: MaintenanceRuns
    run_id: str
    plan: CollectionPlan
    share: str
    clock: Clock
    say: Callable[[str], None]
    counts: CollectionCounts

    def __post_init__(self) -> None:
        # Not this process's own: a try that follows a kill takes the hold over at once.
        self._token = f"{self.run_id}:{self.share}"
        self._held_s = 0.0
        self._part: int | None = None

    def run(self, first_part: int, undo: UndoFile) -> None:
        """Go on from a part to the end of the share.

        :raises TimeIsUp: when the run has taken as long as it may.
        """
        parameters = self.plan.parameters
        pace = run_pace(
            self.runs,
            run_id=self.run_id,
            shard=self.share,
            shards=parameters.shares,
            max_run_minutes=parameters.max_run_minutes,
            say=self.say,
        )
        collector = _Collector(
            Writer(self.client, undo=undo),
            parameters,
            now_ms=self.plan.as_of_ms,
            pace=pace,
            say=self.say,
            counts=self.counts,
            stay=lambda: self._stay(collector.registry),
        )
        for part in range(first_part, parts_of(self.share).stop):
            if collector.registry.hold(part, self._token):
                self._part, self._held_s = part, time.monotonic()
                self._collect_part(part, collector)
            else:
                self.counts.held_parts += 1
                self.say(f"{self.share}: another collector is at part {part:02}, which is left to it")
        self._save(parts_of(self.share).stop, done=True)
        self.say(f"{self.share}: {self.counts.messages:,} messages of {self.counts.queues:,} queues are gone")

    def _collect_part(self, part: int, collector: _Collector) -> None:
        parameters, registry = self.plan.parameters, collector.registry
        finished: dict[str, str | int] = {}
        before = CollectionCounts(**asdict(self.counts))
        try:
            for step in collector.due(part):
                rearmed = collector.collect(step)
                if parameters.is_regular:
                    registry.rearm(part, self._token, rearmed)
                self._save(part)
                time.sleep(PAUSE_S)
            if parameters.is_regular:
                finished = {
                    "finished_ms": self.clock(),
                    "maintenance_run_id": self.run_id,
                    "policy": parameters.policy,
                    "retention_ms": parameters.retention.retention_ms,
                    "tombstone_ms": parameters.retention.tombstone_ms,
                    "queues": self.counts.queues - before.queues,
                    "messages": self.counts.messages - before.messages,
                    "unacked": self.counts.unacked - before.unacked,
                }
        finally:
            registry.finish(part, self._token, finished)

    def _stay(self, registry: Registry) -> None:
        """Hold the part of the registry for longer, if it is time to.

        :raises RefusedError: when another collector holds it, since this one was paused for long.
        """
        if self._part is None or time.monotonic() - self._held_s < RENEW_S:
            return
        if not registry.hold(self._part, self._token):
            raise RefusedError(f"another collector is at part {self._part:02} of the registry by now: collect again")
        self._held_s = time.monotonic()

    def _save(self, part: int, *, done: bool = False) -> None:
        self.runs.save_progress(
            self.run_id,
            ShardProgress(
                shard=self.share,
                cursor=str(part),
                scanned=self.counts.queues,
                removed=self.counts.messages,
                freed_bytes=self.counts.freed_bytes,
                counts=asdict(self.counts),
                done=done,
            ),
        )


def _line(row: DueRow) -> dict[str, Any]:
    """Return a message as JSON can hold it."""
    return {
        "key": b64encode(row.key).decode(),
        "sequence": row.sequence,
        "appended_ms": row.appended_ms,
        "tombstone": row.tombstone,
        "acked": row.acked,
        "size_bytes": row.size_bytes,
        **({} if row.stored is None else {"stored": b64encode(row.stored).decode()}),
    }
