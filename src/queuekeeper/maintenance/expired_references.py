"""Cleans sessions in Redis of what has expired, while brokers use them: SCAN finds candidates, scripts decide again.

What goes, and what only gets an expiry:

- references whose message is gone, and messages that no reference names and that are old enough, are removed;
- messages without expiry get the one that they say of themselves;
- packet ids and fields of sessions in which no message waits get an expiry, which the next message takes off again.

A message that is referred to and alive is never removed: the scripts look again, with all keys declared, in the moment
in which they write. Other faults are counted and left to the remedies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis

from queuekeeper import __version__, lua
from queuekeeper.clock import Clock, Pace, system_clock
from queuekeeper.errors import RefusedError, StalePlan, UsageError
from queuekeeper.jobs.pace import TimeIsUp, run_pace
from queuekeeper.jobs.store import MaintenanceRun, MaintenanceRuns, RunState, ShardProgress
from queuekeeper.jobs.undo import UndoFile, undo_path
from queuekeeper.jobs.writer import Writer
from queuekeeper.keyspace import SLOTS, hash_slot, session_scan_pattern
from queuekeeper.maintenance.cleanup_model import (
    KIND,
    CleanupCounts,
    CleanupOutcome,
    CleanupParameters,
    CleanupPlan,
    CleanupReport,
    CrowdedQueue,
    ShardPlan,
)
from queuekeeper.maintenance.sweep import WORST_QUEUES, Sweep
from queuekeeper.redis_client import RedisClient, address_of, facts, nodes, redis_errors, unfit

KEYS_PER_PAGE = 1_000
_READING = (
    "exists", "get", "hget", "hmget", "memory|usage", "mget", "pexpiretime", "type", "zcard", "zmscore", "zrange",
    "zscore",
)  # fmt: skip
_WRITING = ("hincrby", "hset", "pexpireat", "unlink", "zrem")
_GROUNDWORK = (
    "ping", "info", "time", "scan", "evalsha", "script|load", "command", "cluster|slots",
    "client|setname",
)  # fmt: skip

_log = logging.getLogger(__name__)


def plan_cleanup(
    client: RedisClient,
    *,
    parameters: CleanupParameters,
    now_ms: int,
    name_client: Callable[[str], str] = lambda _: "",
    say: Callable[[str], None] = _log.info,
) -> CleanupPlan:
    """Go through all shards and count what a cleanup would do. Nothing is written.

    :param name_client: gives the name of a client for reports, a keyed hash of its id.
    :param say: told how far it has come, every few seconds.
    :raises RefusedError: when a server is too old, or the user may not do what is needed; names the rule.
    """
    started = time.monotonic()
    check_access(client, key_prefix=parameters.key_prefix, writing=False)
    total, shards, worst = CleanupCounts(), [], list[tuple[int, int, bytes]]()
    for shard in shards_of(client, shares=parameters.shares):
        sweep = Sweep(Writer(client, counts_only=True), parameters)
        counts = CleanupCounts()
        pace = Pace(lambda: parameters.max_operations_per_s)
        narrator = _Narrator(say, verb="looked at", shard=shard, expected_keys=0)
        with _named_rules(client, parameters.key_prefix):
            for _, names in _pages(client, shard, parameters, cursor=0):
                found = sweep.page(names, pace)
                counts.add(found)
                narrator(counts)
        shards.append(ShardPlan(shard=shard, counts=counts))
        total.add(counts)
        worst = nlargest(WORST_QUEUES, [*worst, *sweep.worst])
    return CleanupPlan(
        parameters=parameters,
        code_version=__version__,
        as_of_ms=now_ms,
        shards=tuple(shards),
        counts=total,
        worst=tuple(
            CrowdedQueue(client_hash=name_client(_client_id(stem, parameters)), references=references, dead=dead)
            for dead, references, stem in worst
        ),
        seconds=round(time.monotonic() - started, 3),
    )


def save_cleanup_plan(runs: MaintenanceRuns, plan: CleanupPlan) -> MaintenanceRun:
    """Store a plan, so that it can be approved."""
    found = asdict(plan)
    return runs.save_plan(
        kind=KIND,
        parameters=found.pop("parameters"),
        plan=found,
        operations_per_s=plan.parameters.max_operations_per_s,
    )


def load_cleanup_plan(runs: MaintenanceRuns, run_id: str) -> CleanupPlan:
    """Return a stored plan.

    :raises UsageError: when there is none of this id, or it is of another kind.
    """
    run = runs.load(run_id)
    if run.kind != KIND:
        raise UsageError(f"run {run_id} is a {run.kind}, not a cleanup")
    plan = dict(run.plan)
    shards = tuple(
        ShardPlan(shard=each["shard"], counts=CleanupCounts(**each["counts"])) for each in plan.pop("shards")
    )
    worst = tuple(CrowdedQueue(**each) for each in plan.pop("worst"))
    counts = CleanupCounts(**plan.pop("counts"))
    return CleanupPlan(
        parameters=CleanupParameters(**run.parameters), shards=shards, worst=worst, counts=counts, **plan
    )


def apply_cleanup(
    client: RedisClient,
    *,
    runs: MaintenanceRuns,
    run_id: str,
    shard: str,
    undo_directory: Path,
    clock: Clock = system_clock,
    say: Callable[[str], None] = _log.info,
) -> CleanupReport:
    """Clean one shard of an approved plan. Repeated, it goes on where it was stopped or killed.

    :param shard: one of the plan's.
    :param undo_directory: folder for the undo file.
    :param say: told how far it has come, every few seconds.
    :raises RefusedError: when nobody has approved, another process works on the shard, or Redis refuses.
    :raises StalePlan: when the plan is too old, was made by another release, or its shard is no master any more.
    """
    plan = load_cleanup_plan(runs, run_id)
    planned = next((each for each in plan.shards if each.shard == shard), None)
    if planned is None:
        raise UsageError(f"run {run_id} has no shard {shard!r}: it has {', '.join(each.shard for each in plan.shards)}")
    if runs.load(run_id).approved_by is None:
        raise RefusedError(f"nobody has approved run {run_id}: nothing was written")
    runs.check_current(run_id, now_ms=clock())
    check_access(client, key_prefix=plan.parameters.key_prefix, writing=True)
    with runs.shard_lock(run_id, shard):
        before = runs.shard_progress(run_id, shard)
        path = undo_path(undo_directory, run_id=run_id, shard=shard)
        work = _ShardWork(
            client=client,
            runs=runs,
            run_id=run_id,
            plan=plan,
            planned=planned,
            counts=CleanupCounts(**before.counts),
            say=say,
        )
        stopped = ""
        if not before.done:
            runs.set_state(run_id, RunState.RUNNING)
            try:
                header = {"kind": KIND, "maintenance_run_id": run_id, "shard": shard}
                with UndoFile(path, header) as undo, _named_rules(client, plan.parameters.key_prefix):
                    work.run(before.cursor, undo)
            except TimeIsUp as up:
                stopped = str(up)
                runs.set_state(run_id, RunState.STOPPED)
            except Exception:
                runs.set_state(run_id, RunState.FAILED)
                raise
    open_shards = [each.shard for each in plan.shards if not runs.shard_progress(run_id, each.shard).done]
    if not open_shards:
        runs.set_state(run_id, RunState.DONE)
    return CleanupReport(
        maintenance_run_id=run_id,
        shard=shard,
        done=not stopped,
        stopped=stopped,
        counts=work.counts,
        seconds=round(work.seconds, 3),
        undo_file=str(path) if work.counts.to_do else "",
    )


def report_cleanup(
    client: RedisClient,
    *,
    runs: MaintenanceRuns,
    run_id: str,
    now_ms: int,
    say: Callable[[str], None] = _log.info,
) -> CleanupOutcome:
    """Plan a second time, compare, and keep the outcome with the run."""
    plan = load_cleanup_plan(runs, run_id)
    done = {each.shard: each for each in runs.progress(run_id)}
    counts = CleanupCounts()
    for each in done.values():
        counts.add(CleanupCounts(**each.counts))
    outcome = CleanupOutcome(
        maintenance_run_id=run_id,
        planned=plan.counts,
        counts=counts,
        left=plan_cleanup(client, parameters=plan.parameters, now_ms=now_ms, say=say).counts,
        shards_open=tuple(each.shard for each in plan.shards if each.shard not in done or not done[each.shard].done),
    )
    runs.save_report(run_id, asdict(outcome) | {"clean": outcome.clean, "moved_on": outcome.moved_on})
    return outcome


def shards_of(client: RedisClient, *, shares: int) -> list[str]:
    """Return the shares of the work: a cluster's masters, or ranges of hash slots of a single server."""
    addresses = [address for address, _ in nodes(client)]
    if isinstance(client, redis.RedisCluster) or shares == 1:
        return addresses
    bounds = [SLOTS * share // shares for share in range(shares + 1)]
    return [f"{addresses[0]} slots {first}-{last - 1}" for first, last in pairwise(bounds)]


def acl_rules(key_prefix: str) -> str:
    """Return the command that allows a user what a cleanup needs; nothing that adds a message is among it."""
    keys = (f"~{key_prefix}{{*}}_{kind}" for kind in ("messages*", "last_packet_id", "session"))
    return " ".join(["ACL SETUSER <user>", *keys, *(f"+{command}" for command in (*_GROUNDWORK, *_READING, *_WRITING))])


def check_access(client: RedisClient, *, key_prefix: str, writing: bool) -> None:
    """Check servers and user before anything is done.

    :param writing: whether more than counting is wanted.
    :raises RefusedError: when a server is too old, or the user may not run a command; names the rule that allows it.
    """
    with _named_rules(client, key_prefix):
        problems = [problem for server in facts(client) for problem in unfit(server)]
        if problems:
            raise RefusedError("; ".join(problems))
        key = f"{key_prefix}{{queuekeeper}}_messages"
        commands = _READING + (_WRITING if writing else ())
        refused = lua.ScriptCaller(client).call(lua.load("maintenance/refused_commands"), [key], commands)
    if refused:
        names = ", ".join(name.decode() for name in refused)
        where = f"Redis at {address_of(client)}"
        raise RefusedError(f"{where} does not allow this user {names} on keys such as {key}: {acl_rules(key_prefix)}")


# --- inside ----------------------------------------------------------------------------------------------------------


@contextmanager
def _named_rules(client: RedisClient, key_prefix: str) -> Iterator[None]:
    """Add the rules that a user needs to what a server says of the one that it lacks."""
    try:
        yield
    except RefusedError as error:
        if "does not allow this user to do that" in str(error):
            raise RefusedError(f"{error}. All that a cleanup needs: {acl_rules(key_prefix)}") from error
        raise


def _client_id(stem: bytes, parameters: CleanupParameters) -> str:
    return stem[len(parameters.key_prefix.encode()) + 1 : -1].decode("utf-8", "surrogateescape")


def _pages(
    client: RedisClient, shard: str, parameters: CleanupParameters, *, cursor: int
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield pages of keys of a shard's sessions, each with the cursor of the next one; 0 after the last."""
    address, _, slots = shard.partition(" slots ")
    node = dict(nodes(client)).get(address)
    if node is None:
        raise StalePlan(f"{address} is no master any more: plan again")
    first, last = (int(bound) for bound in (slots or f"0-{SLOTS - 1}").split("-"))
    pattern = session_scan_pattern(parameters.key_prefix)
    while True:
        with redis_errors(address):
            page: Any = node.scan(cursor=cursor, match=pattern, count=KEYS_PER_PAGE)
        cursor, names = page
        yield cursor, [name for name in names if not slots or first <= hash_slot(name) <= last]
        if cursor == 0:
            return


@dataclass
class _Narrator:
    """Says how far a shard has come, every few seconds."""

    say: Callable[[str], None]
    verb: str
    shard: str
    expected_keys: int
    every_s: float = 5.0
    _started_s: float = field(default_factory=time.monotonic, init=False)
    _said_s: float = field(default_factory=time.monotonic, init=False)
    _first: int | None = field(default=None, init=False)

    def __call__(self, counts: CleanupCounts, *, last: bool = False) -> None:
        if self._first is None:
            self._first = counts.keys
        now_s = time.monotonic()
        if not last and now_s - self._said_s < self.every_s:
            return
        self._said_s = now_s
        rate = (counts.keys - self._first) / max(now_s - self._started_s, 0.001)
        of = f"/{self.expected_keys:,}" if self.expected_keys else ""
        text = f"{self.shard}: {self.verb} {counts.keys:,}{of} keys, {rate:,.0f}/s"
        if rate > 0 and self.expected_keys > counts.keys and not last:
            text += f", {(self.expected_keys - counts.keys) / rate:,.0f} s left"
        self.say(f"{text}; {counts.removed:,} to remove or removed, {counts.repaired:,} to repair or repaired")


@dataclass
class _ShardWork:
    """One call of the cleanup on one shard.

    :ivar counts: what was done, by earlier calls of the run too.
    """

    client: RedisClient
    runs: MaintenanceRuns
    run_id: str
    plan: CleanupPlan
    planned: ShardPlan
    counts: CleanupCounts
    say: Callable[[str], None]
    seconds: float = 0.0

    def run(self, position: str, undo: UndoFile) -> None:
        """Go on from a position to the end of the shard.

        :raises TimeIsUp: when the run has taken as long as it may.
        """
        started_s = time.monotonic()
        shard = self.planned.shard
        pace = run_pace(
            self.runs,
            run_id=self.run_id,
            shard=shard,
            shards=len(self.plan.shards),
            max_run_minutes=self.plan.parameters.max_run_minutes,
            say=self.say,
        )
        sweep = Sweep(Writer(self.client, undo=undo), self.plan.parameters)
        narrator = _Narrator(self.say, verb="cleaned", shard=shard, expected_keys=self.planned.counts.keys)
        # A cursor is good for the process that gave it: one that was started since sees its keys in another order.
        server = self._server_run_id()
        known, _, cursor = position.rpartition("/")
        at = int(cursor) if known == server else 0
        try:
            for cursor_after, names in _pages(self.client, shard, self.plan.parameters, cursor=at):
                self.counts.add(sweep.page(names, pace))
                self._save(f"{server}/{cursor_after}", done=cursor_after == 0)
                narrator(self.counts, last=cursor_after == 0)
        finally:
            self.seconds = time.monotonic() - started_s

    def _server_run_id(self) -> str:
        address = self.planned.shard.partition(" slots ")[0]
        node = dict(nodes(self.client)).get(address)
        if node is None:
            raise StalePlan(f"{address} is no master any more: plan again")
        with redis_errors(address):
            info: dict[str, Any] = node.info("server")
        return str(info["run_id"])

    def _save(self, cursor: str, *, done: bool) -> None:
        self.runs.save_progress(
            self.run_id,
            ShardProgress(
                shard=self.planned.shard,
                cursor=cursor,
                scanned=self.counts.keys,
                removed=self.counts.removed,
                repaired=self.counts.repaired,
                freed_bytes=self.counts.freed_bytes,
                counts=asdict(self.counts),
                done=done,
            ),
        )
