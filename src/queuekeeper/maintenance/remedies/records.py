"""Remedies with their records: a plan is kept, a person approves it, and what was done stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from queuekeeper import __version__
from queuekeeper.clock import Clock, Pace, system_clock
from queuekeeper.errors import RefusedError, StalePlan
from queuekeeper.jobs.pace import RunPaused, control_of
from queuekeeper.jobs.store import MaintenanceRun, MaintenanceRuns, RunState, ShardProgress
from queuekeeper.maintenance.remedies.model import Progress, Queue, RemedyParameters, RemedyPlan, RemedyReport
from queuekeeper.maintenance.remedies.queues import Selection
from queuekeeper.maintenance.remedies.registry import remedy_named
from queuekeeper.maintenance.remedies.run import apply_remedy
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient

SHARE = "queues"
"""A remedy's work is one share: it goes from queue to queue."""

_TREATED = "queues treated"
_DONE = "done: "
_IN_QUEUE = "in the queue begun last: "


def record_plan(
    runs: MaintenanceRuns,
    plan: RemedyPlan,
    *,
    selection: Selection,
    now_ms: int,
    operations_per_s: int | None = None,
) -> MaintenanceRun:
    """Keep a plan and return it as a run that waits for approval.

    :param selection: which queues were looked at.
    """
    parameters = {
        **asdict(plan.parameters),
        "selection": {**asdict(selection), "client_hashes": list(selection.client_hashes)},
        "code_version": __version__,
        "as_of_ms": now_ms,
    }
    return runs.save_plan(
        kind=plan.remedy, parameters=parameters, plan=plan.as_record(), operations_per_s=operations_per_s
    )


def recorded_plan(run: MaintenanceRun) -> tuple[RemedyPlan, Selection]:
    """Return what :func:`record_plan` was given.

    :raises UsageError: when the run is none of a remedy.
    """
    remedy_named(run.kind)
    chosen = run.parameters["selection"]
    known = {name: run.parameters[name] for name in RemedyParameters.__dataclass_fields__}
    selection = Selection(**{**chosen, "client_hashes": tuple(chosen["client_hashes"])})
    return RemedyPlan.from_record(run.plan, RemedyParameters(**known)), selection


def apply_recorded(
    client: RedisClient,
    *,
    runs: MaintenanceRuns,
    run_id: str,
    queues: Sequence[Queue],
    undo_directory: Path,
    undo_file: Path | None = None,
    source: Connection | None = None,
    clock: Clock = system_clock,
    say: Callable[[str], None] = lambda text: None,
    stays: bool = True,
) -> RemedyReport:
    """Do what an approved plan says; repeated after an interruption, it does the rest and reports all.

    It stops while the run is paused, and keeps to its throttle.

    :param queues: at least those of the plan.
    :param undo_directory: folder for the undo file.
    :param undo_file: the file itself, when somebody has named it.
    :param say: told how far it has come, about once a second.
    :param stays: whether to wait here while the run is paused.
    :raises RunPaused: when it is paused and this call does not stay; called again later, it goes on.
    :raises RefusedError: when nobody has approved, or another process does it already.
    :raises StalePlan: when the plan is too old, was made by another release, or has been done already.
    """
    run = runs.load(run_id)
    plan, _ = recorded_plan(run)
    if run.approved_by is None:
        raise RefusedError(f"nobody has approved run {run_id}: nothing was written")
    runs.check_current(run_id, now_ms=clock())
    with runs.shard_lock(run_id, SHARE):
        if runs.load(run_id).state is RunState.DONE:
            raise StalePlan(f"run {run_id} is done: plan again")
        so_far = _so_far(runs.shard_progress(run_id, SHARE))
        total = sum(bool(queue.effects) for queue in plan.queues)
        narrator = _Narrator(runs, run_id, so_far, total=total, say=say, stays=stays)
        runs.set_state(run_id, RunState.RUNNING)
        try:
            report = apply_remedy(
                client,
                plan=plan,
                queues=queues,
                undo_path=undo_file or undo_directory / f"{run_id}.repair.undo.jsonl",
                run_id=run_id,
                source=source,
                clock=clock,
                pace=Pace(narrator.rate),
                so_far=so_far,
                progress=narrator,
            )
        except RunPaused:
            raise
        except BaseException:
            runs.set_state(run_id, RunState.FAILED)
            raise
        narrator.save(done=True)
        runs.save_report(run_id, asdict(report))
        runs.set_state(run_id, RunState.DONE)
    return report


class _Narrator:
    """Asks what a person has changed meanwhile, and says how far the run has come."""

    def __init__(
        self,
        runs: MaintenanceRuns,
        run_id: str,
        so_far: Progress,
        *,
        total: int,
        say: Callable[[str], None],
        stays: bool,
    ) -> None:
        self._runs = runs
        self._run_id = run_id
        self._total = total
        self._say = say
        self._stays = stays
        self._progress = so_far

    def __call__(self, progress: Progress) -> None:
        self._progress = progress
        # At once: what is not written down would be done again after a kill, on what has come since.
        self.save(done=False)

    def rate(self) -> float | None:
        """Return the throttle once the run is not paused; asked about once a second."""
        self.save(done=False)
        control = control_of(
            self._runs,
            self._run_id,
            paused=lambda: self._say(f"run {self._run_id} is paused"),
            stays=self._stays,
        )
        if self._progress.looked_at:
            changes = sum(self._progress.done.values())
            self._say(f"{self._progress.looked_at:,} of {self._total:,} queues, {changes:,} changes")
        return control.operations_per_s

    def save(self, *, done: bool) -> None:
        """Note how far it has come."""
        self._runs.save_progress(self._run_id, _as_share(self._progress, done=done))


def _as_share(progress: Progress, *, done: bool) -> ShardProgress:
    counts = {_TREATED: progress.queues}
    counts |= {f"{_DONE}{kind}": count for kind, count in progress.done.items()}
    counts |= {f"{_IN_QUEUE}{kind}": count for kind, count in progress.in_queue.items()}
    return ShardProgress(
        shard=SHARE,
        cursor=progress.queue,
        scanned=progress.looked_at,
        repaired=sum(progress.done.values()),
        counts=counts,
        done=done,
    )


def _so_far(share: ShardProgress) -> Progress:
    """Return what :func:`_as_share` was given; nothing for a run that has not begun."""
    if not share.counts:
        return Progress()
    done, in_queue = (
        {name.removeprefix(start): count for name, count in share.counts.items() if name.startswith(start)}
        for start in (_DONE, _IN_QUEUE)
    )
    return Progress(
        queue=share.cursor, in_queue=in_queue, looked_at=share.scanned, queues=share.counts[_TREATED], done=done
    )


def in_short(plan: RemedyPlan, run_id: str) -> tuple[dict[str, Any], str]:
    """Return a plan's numbers, and the same for people as Markdown; no client id is in it."""
    numbers: dict[str, Any] = {
        "maintenance_run_id": run_id,
        "remedy": plan.remedy,
        "looked_at": plan.looked_at,
        "queues": sum(bool(queue.effects) for queue in plan.queues),
        "effects": plan.effects,
        "changes": sum(plan.effects.values()),
        "refusals": plan.refusals,
        "undo": plan.undo,
    }
    rows = [
        ("Run", f"`{run_id}`"),
        ("Remedy", f"`{plan.remedy}`: {remedy_named(plan.remedy).purpose}"),
        ("Queues", f"{numbers['queues']:,} to mend of {plan.looked_at:,} looked at"),
        *((kind.capitalize(), f"**{count:,}**") for kind, count in plan.effects.items()),
        *((f"Not treated: {reason}", f"{count:,} queues") for reason, count in plan.refusals.items()),
        ("Undo", plan.undo),
    ]
    lines = ["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)]
    if plan.examples:
        lines += ["", "Some of the changes:", ""]
        lines += [f"- {_example(example)}" for example in plan.examples]
    return numbers, "\n".join(lines)


def _example(example: Any) -> str:
    facts = {name.replace("_", " "): value for name, value in example.items() if name not in {"kind", "client_hash"}}
    return f"`{example['client_hash']}`: {example['kind']}" + "".join(
        f", {name} {value}" for name, value in facts.items()
    )
