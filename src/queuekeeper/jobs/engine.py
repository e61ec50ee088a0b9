"""Runs a job of any kind from its plan to its report: plan, approval, shares, second look."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from queuekeeper import __version__
from queuekeeper.approvals import check_release, planning_again
from queuekeeper.clock import Clock, Pace, system_clock
from queuekeeper.errors import QueuekeeperError, RefusedError, StalePlan, UsageError
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.model import AnyJob, AnyOutcome, AnyPlan, Outcome, Plan, SharePlan, ShareReport, World
from queuekeeper.jobs.pace import Breaker, RunPaused, TimeIsUp, run_pace, run_rest
from queuekeeper.jobs.progress import Narrator
from queuekeeper.jobs.shares import server_clock
from queuekeeper.jobs.store import MaintenanceRun, MaintenanceRuns, RunState, ShardProgress
from queuekeeper.jobs.undo import UndoFile, undo_file_exists, undo_path, undo_paths
from queuekeeper.jobs.writer import Writer
from queuekeeper.postgres import Connection
from queuekeeper.redis_names import readings
from queuekeeper.wording import sentence

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Plans and carries out runs of one job.

    :param job: class of the job.
    :param client: connection to Redis; none for a job that works in PostgreSQL alone.
    :param clock: none for the clock of the Redis server, or without Redis of this machine.
    :param undo_directory: folder of the undo files, which may be in an object store (``config.Settings.undo``); none
        for jobs that cannot be undone.
    :param undo_file: undo file of a job with one share, where a person has named it.
    :param database: connection to PostgreSQL, for a job that reads it.
    :param given: values for the job that no record may hold, such as client ids.
    :param name_client: returns the name of a client in reports, a keyed hash of its id.
    :param uniform: chooses the random delay of a share's start.
    :param stays: whether a call waits while the run is paused; otherwise it raises :class:`RunPaused`, and continues
        when it is called again.
    :param say: prints progress, and what could not be worked on.
    """

    job: type[AnyJob]
    client: Any = None
    clock: Clock | None = None
    undo_directory: Path | None = None
    undo_file: Path | None = None
    database: Connection | None = None
    given: Any = None
    name_client: Callable[[str], str] = lambda _: ""
    uniform: Callable[[float, float], float] = random.uniform
    stays: bool = True
    say: Callable[[str], None] = field(default=_log.info)

    # --- plan ----------------------------------------------------------------------------------------------------

    def plan(self, parameters: Any) -> AnyPlan:
        """Count what a run would do, by the run's own code with a writer that only counts.

        :raises RefusedError: when a server or the user's rights on it do not suffice.
        """
        if self.given is None:
            parameters = self.job.settled(parameters, self.database)
        self.job.check(self.client, parameters, writing=False)
        now_ms = self._now_ms()
        rate: int | None = parameters.max_operations_per_s
        work = self._pass(parameters, now_ms=now_ms, wait=Pace(lambda: rate))
        total, shares, steps, exact = self.job.Counts(), list[SharePlan[Any]](), list[str](), True
        started = time.monotonic()
        for share in work.shares():
            for last in readings():
                counts, kept = self._counted(work, share)
                if last or not work.moved:
                    break
            shares.append(SharePlan(share=share, counts=counts))
            total.add(counts)
            steps += kept
            exact = exact and not work.moved
        return Plan(
            parameters=parameters,
            code_version=__version__,
            as_of_ms=now_ms,
            shares=tuple(shares),
            counts=total,
            found=work.found(),
            steps=tuple(steps),
            seconds=round(time.monotonic() - started, 3),
            exact=exact,
        )

    def _counted(self, work: AnyJob, share: str) -> tuple[Any, list[str]]:
        """Return the counts of a share, and the cursors of the steps that are kept."""
        work.moved, tell = False, self._narrator(f"{share}: looked at", to_do=self.job.words.to_do)
        counts, kept = self.job.Counts(), list[str]()
        work.world.total = counts
        for step in work.find(share):
            done = work.apply(step)
            counts.add(done)
            tell(counts)
            if self.job.keeps_steps and (done.changes or done.broken):
                kept.append(step.cursor)
        return counts, kept

    def save(self, runs: MaintenanceRuns, plan: AnyPlan) -> MaintenanceRun:
        """Store a plan, so that it can be approved and carried out."""
        return save_plan(self.job, runs, plan)

    def load(self, runs: MaintenanceRuns, run_id: str) -> AnyPlan:
        """Return a stored plan; see :func:`load_plan`."""
        return load_plan(self.job, runs, run_id)

    # --- work ----------------------------------------------------------------------------------------------------

    def apply(self, runs: MaintenanceRuns, run_id: str, share: str) -> ShareReport[Any]:
        """Do one share of a plan; a repeated call continues where the last one was stopped or killed.

        :raises RefusedError: when a needed approval is missing, another process works on the share, or the server
            refuses.
        :raises StalePlan: when the plan or its approval is too old, or another release made the plan.
        :raises RunPaused: when the run is paused and ``stays`` is false; a later call continues.
        """
        plan = self.load(runs, run_id)
        if share not in plan.share_names():
            raise UsageError(f"run {run_id} has no share {share!r}: it has {', '.join(plan.share_names())}")
        if self.job.asks and runs.load(run_id).approved_by is None:
            asks = f"`queuekeeper {self.job.words.go_on_with(run_id)}` asks for it"
            raise RefusedError(f"nobody has approved run {run_id}: nothing was written; {asks}")
        self.job.check(self.client, plan.parameters, writing=True)
        runs.check_current(run_id, now_ms=self._now_ms())

        def tell(state: RunState) -> None:
            runs.set_share_state(run_id, share, state, shares=plan.share_names())

        started = time.monotonic()
        with runs.shard_lock(run_id, share):
            before = runs.shard_progress(run_id, share)
            counts = self.job.Counts(**before.counts)
            stopped = ""
            if not before.done:
                tell(RunState.RUNNING)
                try:
                    self._work(runs, run_id, plan, share, before, counts)
                except TimeIsUp as up:
                    stopped = str(up)
                    tell(RunState.STOPPED)
                except RunPaused:
                    raise
                except Exception:
                    tell(RunState.FAILED)
                    raise
            if not stopped:
                tell(RunState.DONE)
        return ShareReport(
            maintenance_run_id=run_id,
            share=share,
            done=not stopped,
            stopped=stopped,
            counts=counts,
            seconds=round(time.monotonic() - started, 3),
            undo_file=str(self._undo_path(run_id, share)) if self.job.undoes and counts.changes else "",
        )

    def _work(
        self, runs: MaintenanceRuns, run_id: str, plan: AnyPlan, share: str, before: ShardProgress, counts: Counts
    ) -> None:
        rest = self._rest(runs, run_id)
        rest()
        max_jitter_s = float(getattr(plan.parameters, "max_jitter_s", 0))
        if max_jitter_s and not before.cursor:
            time.sleep(self.uniform(0.0, max_jitter_s))
        wait = run_pace(
            runs,
            run_id=run_id,
            shard=share,
            max_run_minutes=plan.parameters.max_run_minutes,
            say=self.say,
            stays=self.stays,
        )
        with ExitStack() as stack:
            work = self._pass(plan.parameters, now_ms=plan.as_of_ms, wait=wait, planned=plan, writes=True, rest=rest)
            work.world.run_id, work.world.token, work.world.total = run_id, f"{run_id}:{share}", counts
            if self.job.undoes:
                header = {
                    "kind": self.job.kind,
                    "maintenance_run_id": run_id,
                    "share": share,
                    "key_prefix": plan.parameters.key_prefix,
                    **work.undo_header(),
                }
                work.world.writer.undo = stack.enter_context(UndoFile(self._undo_path(run_id, share), header))
            cursor = before.cursor
            total = None if self.job.keeps_steps else plan.share(share).counts.scanned
            tell = self._narrator(f"{share}:", to_do=self.job.words.done, total=total)
            tell(counts)
            for step in stack.enter_context(closing(work.find(share, cursor))):
                try:
                    counts.add(work.apply(step))
                except (RunPaused, TimeIsUp, QueuekeeperError):
                    counts.add_changes(work.begun or self.job.Counts())
                    runs.save_progress(run_id, _progress(share, cursor, counts))
                    raise
                # Writing progress must not count as time of the server.
                work.world.breaker.answered()
                cursor = step.cursor
                runs.save_progress(run_id, _progress(share, cursor, counts))
                tell(counts)
                rest()
        runs.save_progress(run_id, _progress(share, cursor, counts, done=True))
        self.say(work.done_words(share, counts))

    def undo(self, *, run_id: str, parameters: Any, dry_run: bool) -> Any:
        """Undo the changes of a run from the undo files of its shares; in a dry run only count them.

        :raises UsageError: when there is no undo file, or the job cannot be undone.
        """
        if refusal := self.job.no_way_back():
            raise UsageError(refusal)
        rate: int | None = parameters.max_operations_per_s
        work = self._pass(parameters, now_ms=self._now_ms(), wait=Pace(lambda: rate), writes=not dry_run)
        return work.undo(run_id, [self.undo_file] if self.undo_file else undo_paths(self._directory(), run_id=run_id))

    # --- report --------------------------------------------------------------------------------------------------

    def report(self, runs: MaintenanceRuns, run_id: str, *, dry_run: bool) -> AnyOutcome:
        """Take the second look at the run's rate, and store the outcome with the run, once it has begun or is over.

        There is no second look after a dry run or when the plan was empty.

        :param dry_run: whether the run ended with its plan.
        :raises RunPaused: when the run is paused and ``stays`` is false; a later call takes the look anew.
        """
        plan = self.load(runs, run_id)
        counts = self.job.Counts()
        for each in runs.progress(run_id):
            counts.add(self.job.Counts(**each.counts))
        is_over = dry_run or (plan.empty and not self.job.works_when_empty)
        if is_over and not dry_run:
            runs.set_state(run_id, RunState.DONE)
        wait = run_pace(
            runs,
            run_id=run_id,
            shard="second look",
            max_run_minutes=None,
            say=self.say,
            stays=self.stays,
        )
        rest = self._rest(runs, run_id)
        look = self._pass(plan.parameters, now_ms=plan.as_of_ms, wait=wait, planned=plan, rest=rest)
        left, proved = (None, plan.exact) if is_over else self._second_look(look)
        outcome = Outcome(
            maintenance_run_id=run_id,
            dry_run=dry_run,
            plan=plan,
            counts=counts,
            left=left,
            proved=proved,
            open_shares=() if is_over else _open_shares(runs, run_id, plan),
            undo_files=self._undo_files(run_id, plan) if counts.changes else (),
            facts=look.facts(),
            generated_at_ms=self._now_ms(),
        )
        kept = outcome_facts(outcome)
        del kept["plan"]
        # The audit records what was done: a run without changes adds no entry, and neither does a second report.
        run = runs.load(run_id)
        before = run.report or {}
        is_told = is_over or not counts.changes or before.get("counts") == kept["counts"]
        # Whoever looks at a plan that nobody has answered for answers nothing: it still waits, or stays a dry run.
        if is_over or run.state is not RunState.PLANNED:
            runs.save_report(run_id, kept, effect={} if is_told else None)
        return outcome

    def _second_look(self, look: AnyJob) -> tuple[Any, bool]:
        for last in readings():
            look.moved, left = False, self.job.Counts()
            tell = self._narrator("second look: looked at", to_do=self.job.words.to_do)
            steps = look.look_again()
            for step in islice(steps, self.job.proof_steps):
                look.world.rest()
                left.add(look.apply(step))
                tell(left)
            is_all = next(steps, None) is None
            if last or not look.moved:
                break
        return left, look.proved and is_all and not look.moved

    # --- inside --------------------------------------------------------------------------------------------------

    def _narrator(self, step: str, *, to_do: str, total: int | None = None) -> Callable[[Counts], None]:
        """Return what says every few seconds how far a step is, told its counts.

        :param to_do: sentence on the number of changes.
        :param total: how much there is to look at; none where nobody knows.
        """
        narrator = Narrator(self.say, step, total=total, unit=self.job.words.units)
        return lambda counts: narrator.at(counts.scanned, f"; {sentence(to_do, count=counts.changes)}")

    def _pass(
        self,
        parameters: Any,
        *,
        now_ms: int,
        wait: Callable[[float], None],
        planned: AnyPlan | None = None,
        writes: bool = False,
        rest: Callable[[], None] = lambda: None,
    ) -> AnyJob:
        world = World(
            client=self.client,
            parameters=parameters,
            now_ms=now_ms,
            clock=self._clock(),
            writer=Writer(self.client, counts_only=not writes),
            wait=wait,
            rest=rest,
            breaker=Breaker(self.say),
            say=self.say,
            name_client=self.name_client,
            planned=planned,
            database=self.database,
            given=self.given,
        )
        return self.job(world)

    def _rest(self, runs: MaintenanceRuns, run_id: str) -> Callable[[], None]:
        return (lambda: None) if self.stays else run_rest(runs, run_id)

    def _now_ms(self) -> int:
        return self._clock()()

    def _clock(self) -> Clock:
        return self.clock or (server_clock(self.client) if self.job.on_redis else system_clock)

    def _directory(self) -> Path:
        if self.undo_directory is None:
            raise UsageError(f"the {self.job.words.noun} needs a folder for its undo files: name one")
        return self.undo_directory

    def _undo_files(self, run_id: str, plan: AnyPlan) -> tuple[str, ...]:
        """Return the undo files of a run that can be found from this machine."""
        if not self.job.undoes:
            return ()
        paths = (self._undo_path(run_id, share) for share in plan.share_names())
        return tuple(str(path) for path in paths if undo_file_exists(path))

    def _undo_path(self, run_id: str, share: str) -> Path:
        return self.undo_file or undo_path(self._directory(), run_id=run_id, shard=share)


def save_plan(job: type[AnyJob], runs: MaintenanceRuns, plan: AnyPlan) -> MaintenanceRun:
    """Store a plan, so that it can be approved and carried out."""
    facts = plan.facts()
    return runs.save_plan(
        kind=job.kind,
        parameters=facts.pop("parameters"),
        # Names from other programs may hold characters that PostgreSQL's text cannot.
        plan=facts | {"steps": json.dumps(plan.steps)},
        operations_per_s=plan.parameters.max_operations_per_s,
    )


def load_plan(job: type[AnyJob], runs: MaintenanceRuns, run_id: str) -> AnyPlan:
    """Return a stored plan.

    :raises UsageError: when there is no plan of this id, or it is of another job.
    :raises StalePlan: when an earlier release, or an earlier build of this one, wrote the plan in another form.
    """
    run = runs.load(run_id)
    run.check_kind((job.kind,), job.words.noun)
    plan = run.plan
    if "steps" not in plan:
        again = planning_again(job.words.command)
        made_by = plan.get("code_version")
        check_release(f"run {run_id}", made_by or "", command=job.words.command)
        raise StalePlan(
            f"run {run_id} was planned by an earlier build of release {__version__}, in a form that this build does "
            f"not read: {again}"
        )
    counts = job.Counts
    return Plan(
        parameters=job.Parameters(**run.parameters),
        code_version=plan["code_version"],
        as_of_ms=plan["as_of_ms"],
        shares=tuple(SharePlan(share=one["share"], counts=counts(**one["counts"])) for one in plan["shares"]),
        counts=counts(**plan["counts"]),
        found=TypeAdapter(job.Found).validate_python(plan),
        steps=tuple(json.loads(plan["steps"])),
        seconds=plan["seconds"],
        exact=plan.get("exact", True),
    )


def outcome_facts(outcome: AnyOutcome) -> dict[str, Any]:
    """Return the outcome of a run as JSON values."""
    facts: dict[str, Any] = asdict(outcome)
    facts |= {"plan": outcome.plan.facts(), "clean": outcome.clean, "moved_on": outcome.moved_on}
    return {**facts, **facts.pop("facts")}


def _open_shares(runs: MaintenanceRuns, run_id: str, plan: AnyPlan) -> tuple[str, ...]:
    """Return the shares that are not done."""
    done = {each.shard for each in runs.progress(run_id) if each.done}
    return tuple(share for share in plan.share_names() if share not in done)


def _progress(share: str, cursor: str, counts: Counts, *, done: bool = False) -> ShardProgress:
    kept: Any = counts
    return ShardProgress(
        shard=share,
        cursor=cursor,
        scanned=counts.scanned,
        removed=counts.removed,
        repaired=counts.repaired,
        freed_bytes=getattr(counts, "freed_bytes", 0),
        counts=asdict(kept),
        done=done,
    )
