"""Each verb of ``queuekeeper run`` does something to a run of each kind that can be seen, or is refused in words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queuekeeper import audit, postgres
from queuekeeper.cli import app, context
from queuekeeper.jobs.parameters import describe
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.migration.ledger.ledger import MIGRATIONS, MigrationLedger
from queuekeeper.migration.ledger.model import PlanState
from queuekeeper.postgres import Connection
from queuekeeper.report.files import report_name
from tests.run_kinds import JOBS, KINDS, PARTITIONS, planned, rejected

pytestmark = pytest.mark.integration

CALLS = (
    ("status",), ("pause",), ("resume",), ("throttle", "250"), ("undo", "--dry-run"), ("undo", "--yes"), ("report",),
)  # fmt: skip


@pytest.fixture
def control(named_postgres: str, named_redis: str, control_schema: None) -> Iterator[Connection]:
    """Schema ``queuekeeper`` and an empty Redis, named by the environment."""
    with postgres.connect(named_postgres, autocommit=True) as connection:
        yield connection


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
        return "moves no rows, so there is nothing to slow down. `queuekeeper run pause"
    if verb == "undo" and kind in PARTITIONS:
        return " of partitions has no undo: "
    if verb == "undo" and kind == "online_migration":
        return "`queuekeeper online roll-back"
    if verb == "undo" and kind == "session_migration":
        return "restore them first"  # there are no tables of sessions here
    if verb == "undo" and kind not in MIGRATIONS and not job_of(kind).undoes:
        return "has no undo"
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_works_on_a_run_of_a_kind_or_is_refused_in_words(
    control: Connection, own_home: Path, kind: str
) -> None:
    run_id = planned(control, kind, own_home)
    if kind == "session_migration":
        # Its plan is verified, and nobody tells a run anything that is over.
        MigrationLedger(control).set_plan_state(run_id, PlanState.COPYING)
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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "online_migration"])
def test_run_that_is_over_is_not_paused_resumed_or_slowed_down_in_silence(
    control: Connection, own_home: Path, kind: str
) -> None:
    run_id = planned(control, kind, own_home)
    if kind in MIGRATIONS:
        MigrationLedger(control).set_plan_state(run_id, PlanState.VERIFIED)
    else:
        MaintenanceRuns(control).set_state(run_id, RunState.DONE)
        MaintenanceRuns(control).save_report(run_id, {"changes": 0})
    before, noted = MaintenanceRuns(control).load(run_id), entries(control, run_id)

    for call in (("pause", run_id), ("resume", run_id), ("throttle", run_id, "250")):
        code, told, error = called(*call)
        assert (code, told) == (4, None)
        assert "It is done: nothing is at work that could be paused, resumed or slowed down." in error
        assert f"`queuekeeper run report {run_id}` says what it did" in error

    assert MaintenanceRuns(control).load(run_id) == before
    assert entries(control, run_id) == noted
    # A pause that came before the end can be lifted, as a second look keeps to it; the run does not go on.
    MaintenanceRuns(control).set_paused(run_id, True)
    lifted = CliRunner().invoke(app, ["run", "resume", run_id])
    assert (lifted.exit_code, MaintenanceRuns(control).load(run_id).paused) == (0, False)
    assert "no longer paused. It is done:" in " ".join(lifted.stdout.split())


@pytest.mark.parametrize("kind", KINDS)
def test_run_that_nobody_agreed_to_takes_no_order_and_says_what_can_be_done(
    control: Connection, own_home: Path, kind: str
) -> None:
    run_id = rejected(control, kind, own_home)
    before, noted = MaintenanceRuns(control).load(run_id), entries(control, run_id)
    assert before.state is RunState.REJECTED

    for call in (("pause", run_id), ("resume", run_id), ("throttle", run_id, "250")):
        code, told, error = called(*call)
        assert (code, told) == (4, None)
        assert "Nothing is at work that could be paused, resumed or slowed down." in error
        assert before.rejected in error
        assert "agree after all: `queuekeeper " in error or kind == "partition_reattachment"
    for more in (["--dry-run"], ["--yes"]):
        code, told, error = called("undo", run_id, *more)
        assert (code, told) == (4, None)
        assert "Nobody agreed when asked, so there is nothing to undo." in error

    assert MaintenanceRuns(control).load(run_id) == before
    assert entries(control, run_id) == noted
    # A pause of the time before would hold the run up when somebody agrees after all, so it can be lifted.
    MaintenanceRuns(control).set_paused(run_id, True)
    lifted = CliRunner().invoke(app, ["run", "resume", run_id])
    assert (lifted.exit_code, MaintenanceRuns(control).load(run_id).paused) == (0, False)
    assert "no longer paused. Nothing is at work" in " ".join(lifted.stdout.split())


def test_a_script_gets_the_newest_run_of_a_job_by_its_id_alone(control: Connection, own_home: Path) -> None:
    planned(control, "repair_ttl", own_home)
    newest = planned(control, "repair_ttl", own_home)
    planned(control, "fanout_repair", own_home)

    listed = CliRunner().invoke(app, ["run", "list", "--kind", "repair_ttl", "--limit", "1", "--ids"])

    assert listed.stdout == f"{newest}\n"


def test_every_job_is_started_with_what_its_model_declares_and_help_says_in_a_sentence_what_it_is_for() -> None:
    said = " ".join(CliRunner().invoke(app, ["run", "start", "--help"]).stdout.split())
    for kind in JOBS:
        job: Any = job_of(kind)
        words = " ".join((job.__doc__ or "").split("\n\n")[0].split())
        assert f"{kind} {words}" in said
        options = CliRunner().invoke(app, ["run", "start", kind, "--help"]).stdout
        names = {"--go-on", "--dry-run", "--yes", "--json"} | {
            f"--{name.replace('_', '-')}" for name in describe(job.Parameters)
        }
        assert {*re.findall(r"--[a-z-]+", options)} >= names - {"--shares"}
        assert ("--redis-url" in options) == job.on_redis
    assert not [kind for kind in {*KINDS} - {*JOBS} if f" {kind} " in said]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in JOBS])
def test_who_starts_a_run_that_is_no_job_s_is_told_the_command_that_does(kind: str) -> None:
    code, _, said = called("start", kind, "--dry-run")

    assert (code, f"{kind} is no job of the engine: `queuekeeper " in said) == (2, True)
    words = said.split("`")[1].removeprefix("queuekeeper ").split()
    assert CliRunner().invoke(app, [*words, "--help"]).stdout.startswith(f"Usage: queuekeeper {' '.join(words)} ")


def test_job_of_no_name_is_refused_with_the_names_there_are() -> None:
    code, _, said = called("start", "fanout_repairs")

    assert (code, "there is no job 'fanout_repairs': there are compacted_queue_gc, event_upkeep" in said) == (2, True)


@pytest.mark.parametrize("kind", PARTITIONS)
def test_run_that_moves_rows_out_of_default_has_a_pace_that_counts_them(
    control: Connection, own_home: Path, kind: str
) -> None:
    run_id = planned(control, kind, own_home, drains=True)

    code, told, error = called("throttle", run_id, "250")

    assert (code, told["throttle_operations_per_s"]) == (0, 250), error


@pytest.mark.parametrize("kind", PARTITIONS)
def test_report_of_partitions_is_one_run_s_page_and_its_json(control: Connection, own_home: Path, kind: str) -> None:
    run_id = planned(control, kind, own_home)

    code, told, error = called("report", run_id, "--report-directory", str(own_home / "reports"))

    assert code == 0, error
    page, facts = Path(told["html"]).read_text("utf-8"), json.loads(Path(told["json"]).read_bytes())
    assert report_name(Path(told["html"]).name) is not None
    assert told["verdict"] == facts["verdict"]
    assert told["verdict"].endswith("public.readings: 0 of 1 steps are done")
    assert facts["plan"]["steps"][0]["reason"] == "its day is over"
    assert told["verdict"] in page
    assert '<td class="text">public.readings_p1</td><td class="text">its day is over</td>' in page


def test_list_shows_instants_as_other_tables_do_and_json_has_them_whole(control: Connection, own_home: Path) -> None:
    run_id = planned(control, "fanout_repair", own_home)
    at = MaintenanceRuns(control).load(run_id).created_at.astimezone(UTC)

    result = CliRunner().invoke(app, ["run", "list"], env={"COLUMNS": "200"})

    assert result.exit_code == 0, result.output
    assert f"{at:%Y-%m-%d %H:%M:%S} UTC" in result.stdout
    code, [told], _ = called("list")
    assert (code, datetime.fromisoformat(told["planned"])) == (0, at)
    # As every other result of JSON has it.
    assert told["planned"][10] == "T"
    assert (told["maintenance_run_id"], told["kind"]) == (told["run"], told["job"]) == (run_id, "fanout_repair")


def test_list_has_runs_of_a_job_that_only_an_early_build_knew_and_refuses_a_name_of_none(control: Connection) -> None:
    runs = MaintenanceRuns(control)
    run_id = runs.save_plan(kind="early_job", parameters={}, plan={"code_version": "0.0.1"}).maintenance_run_id
    code, [told], _ = called("list", "--kind", "early_job")
    assert (code, told["run"], told["job"]) == (0, run_id, "early_job")

    result = CliRunner().invoke(app, ["run", "list", "--kind", "nonsense"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no job 'nonsense': there are compacted_queue_gc" in result.stderr
