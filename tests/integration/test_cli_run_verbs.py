"""Each verb of ``queuekeeper run`` does something to a run of each kind that can be seen, or is refused in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queuekeeper import __version__, audit, postgres
from queuekeeper.cli import app, context
from queuekeeper.clock import system_clock
from queuekeeper.events import schema
from queuekeeper.jobs.engine import save_plan
from queuekeeper.jobs.model import Plan, SharePlan
from queuekeeper.jobs.registry import job_names, job_of
from queuekeeper.jobs.store import MIGRATIONS, MaintenanceRuns
from queuekeeper.jobs.undo import UndoFile, undo_path
from queuekeeper.maintenance.partitions.model import Purpose
from queuekeeper.maintenance.partitions.runs import kind_of
from queuekeeper.migration.ledger import MigrationLedger
from queuekeeper.migration.model import Mode
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.postgres import Connection
from tests import report_samples

pytestmark = pytest.mark.integration

PARTITIONS = [kind_of(purpose) for purpose in Purpose]
# Not those that tests have made known.
OWN = [name for name in job_names() if ".maintenance." in job_of(name).__module__]
KINDS = [*OWN, *PARTITIONS, *MIGRATIONS]
CALLS = (
    ("pause",), ("resume",), ("throttle", "250"), ("undo", "--dry-run"), ("undo", "--yes"), ("report",),
)  # fmt: skip
STEP = {"schema_name": "public", "relation_name": "readings_p1", "reason": "its day is over"}


@pytest.fixture
def control(named_postgres: str, named_redis: str) -> Iterator[Connection]:
    """Schema ``queuekeeper`` and an empty Redis, named by the environment."""
    with postgres.connect(named_postgres, autocommit=True) as connection:
        postgres.migrate(connection)
        yield connection


def planned(connection: Connection, kind: str, folder: Path, *, drains: bool = False) -> str:
    """Return a run of a kind, with an undo file of one share where it has a way back."""
    if kind in MIGRATIONS:
        plan = report_samples.balanced(count=4).plan
        mode = Mode.ONLINE if kind == "online_migration" else Mode.OFFLINE
        plan = replace(plan, parameters=replace(plan.parameters, mode=mode))
        plan = MigrationLedger(connection).save_plan(plan, run_id="run")
        if mode is Mode.ONLINE:
            OnlineCohorts(connection).arm(plan, [0], actor="somebody")
        return plan.plan_id
    runs = MaintenanceRuns(connection)
    if kind in PARTITIONS:
        facts = {
            "purpose": kind.removeprefix("partition_"), "table": "public.readings", "as_of_ms": system_clock(),
            "code_version": __version__, "steps": [STEP | {"kind": "drain" if drains else "detach"}],
        }  # fmt: skip
        return runs.save_plan(kind=kind, parameters={}, plan=facts).maintenance_run_id
    job = job_of(kind)
    if not job.on_redis:
        schema.install(connection)  # the event broker, of which the job reports
    found: Any = Plan(
        parameters=job.Parameters(),
        code_version=__version__,
        as_of_ms=system_clock(),
        shares=(SharePlan(share="all", counts=job.Counts()),),
        counts=job.Counts(),
        found=job.Found(),
        steps=(),
        seconds=0.0,
    )
    run_id = save_plan(job, runs, found).maintenance_run_id
    with UndoFile(undo_path(folder / "undo", run_id=run_id, shard="all"), {"kind": kind, "values": True}):
        return run_id


def called(*arguments: str) -> tuple[int, Any, str]:
    """Return exit code, JSON, and what was refused, as one line."""
    result = CliRunner().invoke(app, ["run", *arguments, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    told = json.loads(result.stdout) if result.stdout.strip() else None
    return result.exit_code, told, " ".join(result.stderr.split())


def entries(connection: Connection, run_id: str) -> list[tuple[str, str, str]]:
    """Return who did what to which kind of run, in order; what a report leaves is no change."""
    found = audit.latest(connection, wanted=audit.AuditFilter(subject=run_id))
    return [
        (each.actor, each.action, json.loads(each.effect).get("kind", ""))
        for each in reversed(found)
        if each.action not in ("apply", "report")
    ]


def expected(kind: str, verb: str) -> str:
    """Return the words that refuse a verb; empty where it works."""
    if verb == "throttle" and kind in PARTITIONS:
        return "moves no rows, so there is nothing to slow down; `queuekeeper run pause"
    if verb == "undo" and kind in PARTITIONS:
        return "which has no undo: "
    if verb == "undo" and kind == "online_migration":
        return "`queuekeeper online roll-back"
    if verb == "undo" and kind == "session_migration":
        return "restore them first"  # there are no tables of sessions here
    if verb == "undo" and kind not in MIGRATIONS and not job_of(kind).undoes:
        return "has no way back"
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_works_on_a_run_of_a_kind_or_is_refused_in_words(
    control: Connection, own_home: Path, kind: str
) -> None:
    run_id = planned(control, kind, own_home)
    seen = MaintenanceRuns(control)
    for verb, *more in CALLS:
        before = seen.load(run_id)
        noted = entries(control, run_id)

        code, told, error = called(verb, run_id, *more)

        after = seen.load(run_id)
        new = entries(control, run_id)[len(noted) :]
        if refusal := expected(kind, verb):
            assert (verb, code in (2, 4), told, after) == (verb, True, None, before)
            assert refusal in error
            # Who has agreed to what is then refused has done so.
            assert [act for _, act, _ in new if act != "approve"] == []
            continue
        # A report is there whatever it says: that a share is not done, too.
        assert (verb, code in ((0, 1) if verb == "report" else (0,))) == (verb, True), error
        assert told
        # Whatever changes a run stands in the audit, with the person and what kind of run it is.
        acts = ["approve", "undo"] if "--yes" in more else [verb] * (verb in ("pause", "resume", "throttle"))
        assert new == [(context.person(), act, kind) for act in acts]
        assert after.paused == (verb == "pause")
        if verb == "throttle":
            assert after.throttle_operations_per_s == 250


@pytest.mark.parametrize("kind", PARTITIONS)
def test_run_that_moves_rows_out_of_default_has_a_pace_that_counts_them(
    control: Connection, own_home: Path, kind: str
) -> None:
    run_id = planned(control, kind, own_home, drains=True)

    code, told, error = called("throttle", run_id, "250")

    assert (code, told["throttle_operations_per_s"]) == (0, 250), error
    code, told, error = called("report", run_id, "--report-directory", str(own_home))
    assert (code, told) == (2, None)
    assert "has no report as a file" in error
