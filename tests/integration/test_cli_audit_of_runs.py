"""Whatever a person changes or answers at the command line stands in the audit, for every kind of run there is."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from queuekeeper import __version__, approvals, audit, postgres
from queuekeeper.cli import app, command, context
from queuekeeper.cli.command import Call
from queuekeeper.cli.run_control import agree, take_back
from queuekeeper.clock import system_clock
from queuekeeper.errors import RefusedError, StalePlan
from queuekeeper.jobs.engine import load_plan
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.maintenance.compacted.model import KIND as COLLECTION
from queuekeeper.maintenance.fanout.repair import FanoutRepair
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import PlanState
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.postgres import Connection
from tests import report_samples

pytestmark = pytest.mark.integration

COMMANDS = Path(context.__file__).parent
DAY_MS = 86_400_000

# Group of commands -> kind of the runs that it controls.
KINDS = {"cleanup": "expired_reference_cleanup", "compacted": COLLECTION, "fanout": FanoutRepair.kind}
KINDS["run"] = COLLECTION
PLANS = {"migrate", "online"}

# What is asked there is about messages and queues themselves, and belongs to no run.
STORES = {"sample.py", "sessions.py", "stores.py", "compacted.py", "fanout.py", "foreign_writers.py", "event_schema.py"}


def _controls() -> list[tuple[str, ...]]:
    """Return the commands that change the pace of a run, pause it or let it go on, as they are found in the program."""
    found = []

    def walk(command: Any, path: tuple[str, ...]) -> None:
        for name, each in getattr(command, "commands", {}).items():
            walk(each, (*path, name))
        words = [each.metavar for each in command.params if each.param_type_name == "argument"] if path else []
        if path and path[-1].rpartition("-")[2] in ("pause", "resume", "throttle") and {"RUN", "PLAN"} & set(words):
            found.append(path)

    walk(typer.main.get_command(app), ())
    return found


CONTROLS = _controls()


@pytest.fixture
def control(named_postgres: str, control_schema: None) -> Iterator[Connection]:
    """Schema ``queuekeeper`` with a run of every kind, named by the environment."""
    with postgres.connect(named_postgres, autocommit=True) as connection:
        yield connection


def planned(connection: Connection, group: str) -> str:
    """Return a run or plan that the commands of a group may control."""
    if group in PLANS:
        plan = MigrationLedger(connection).save_plan(report_samples.balanced(count=4).plan, run_id="run")
        OnlineCohorts(connection).arm(plan, [0], actor="somebody")
        return plan.plan_id
    runs = MaintenanceRuns(connection)
    return runs.save_plan(kind=KINDS[group], parameters={}, plan=fresh()).maintenance_run_id


def fresh(*, age_days: float = 0, code_version: str = __version__) -> dict[str, Any]:
    return {"as_of_ms": system_clock() - round(age_days * DAY_MS), "code_version": code_version}


def entries(connection: Connection, subject: str, *actions: audit.Action) -> list[tuple[str, str, dict[str, Any]]]:
    """Return who did what, with which effect, in order."""
    found = audit.latest(connection, wanted=audit.AuditFilter(subject=subject))
    return [
        (each.actor, each.action, json.loads(each.effect))
        for each in reversed(found)
        if not actions or each.action in actions
    ]


def test_every_kind_of_run_can_be_paused_resumed_and_slowed() -> None:
    assert {path[0] for path in CONTROLS} == {*KINDS, *PLANS}
    # A copy with the broker stopped has a throttle, which also brings it to a stand.
    assert len(CONTROLS) == 3 * 5 + 1


@pytest.mark.parametrize("path", CONTROLS, ids=" ".join)
def test_change_of_pace_pause_and_resume_stand_in_the_audit_with_the_person(
    control: Connection, path: tuple[str, ...]
) -> None:
    subject = planned(control, path[0])
    verb = path[-1].rpartition("-")[2]
    given = ("250",) if verb == "throttle" else ()

    result = CliRunner().invoke(app, [*path, subject, *given])

    assert result.exit_code == 0, result.output
    ((actor, _, effect),) = entries(control, subject, audit.Action(verb))
    assert actor == context.person()
    assert effect["kind"]
    if verb == "throttle":
        assert 250 in effect.values()


def asked(**given: bool) -> Call:
    """Return the call of a command that is asked for this."""
    return Call(ExitStack(), given)


def answers(monkeypatch: pytest.MonkeyPatch, *, yes: bool) -> None:
    """Have a person sit at the terminal who gives this answer."""
    monkeypatch.setattr(command, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: yes)


@pytest.mark.parametrize("kind", [*KINDS.values(), "repair_ttl", "partition_drop"])
def test_answer_at_the_terminal_stands_in_the_audit_and_only_a_yes_approves(
    control: Connection, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = MaintenanceRuns(control)
    run_id = runs.save_plan(kind=kind, parameters={}, plan=fresh()).maintenance_run_id
    person = context.person()

    answers(monkeypatch, yes=False)
    with pytest.raises(RefusedError, match="not confirmed: nothing was written"):
        agree(asked(), runs, run_id, "Shall it?")
    assert (runs.load(run_id).approved_by, runs.load(run_id).state) == (None, RunState.REJECTED)
    answers(monkeypatch, yes=True)
    agree(asked(), runs, run_id, "Shall it?")
    # Who has agreed is not asked again.
    agree(asked(), runs, run_id, "Shall it?")

    assert runs.load(run_id).approved_by == person
    assert entries(control, run_id) == [(person, "reject", {"kind": kind}), (person, "approve", {"kind": kind})]


@pytest.mark.parametrize("kind", ["session_migration", "fanout_repair", "partition_drop"])
def test_run_about_which_nobody_can_be_asked_is_rejected_on_record_and_may_be_agreed_to_later(
    control: Connection, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = MaintenanceRuns(control)
    if kind == "session_migration":
        plan = replace(report_samples.balanced(count=4).plan, state=PlanState.PLANNED, **fresh())
        run_id = MigrationLedger(control).save_plan(plan, run_id=None).plan_id
    else:
        run_id = runs.save_plan(kind=kind, parameters={}, plan=fresh()).maintenance_run_id
    person = context.person()
    assert runs.load(run_id).state is RunState.PLANNED

    monkeypatch.setattr(command, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: False)))
    with pytest.raises(RefusedError, match=r"Shall it\? Nobody can be asked here: repeat the command with --yes"):
        agree(asked(), runs, run_id, "Shall it?")
    assert (runs.load(run_id).approved_by, runs.load(run_id).state) == (None, RunState.REJECTED)

    agree(asked(yes=True), runs, run_id, "Shall it?")
    assert (runs.load(run_id).approved_by, runs.load(run_id).state) == (person, RunState.APPROVED)
    answered = [(person, "unanswered", {"kind": kind}), (person, "approve", {"kind": kind, "option": "--yes"})]
    assert entries(control, run_id) == answered


@pytest.mark.parametrize("kind", [*KINDS.values(), "repair_ttl"])
def test_undo_stands_in_the_audit_with_what_it_took_back_and_a_no_takes_nothing_back(
    control: Connection, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone: list[bool] = []

    def undo(only_count: bool) -> dict[str, Any]:
        undone.append(not only_count)
        return {"restored": 7, "client": "meter-17"}

    def take(*, dry_run: bool = False) -> Any:
        return take_back(
            asked(dry_run=dry_run),
            undo,
            lambda _: "Take it back?",
            subject="run-1",
            kind=kind,
            connection=control,
        )

    person = context.person()
    assert take(dry_run=True)["restored"] == 7
    answers(monkeypatch, yes=False)
    with pytest.raises(RefusedError, match="not confirmed"):
        take()
    assert (any(undone), entries(control, "run-1", audit.Action.UNDO)) == (False, [])
    answers(monkeypatch, yes=True)
    take()

    assert undone[-1]
    assert [(actor, action) for actor, action, _ in entries(control, "run-1")] == [
        (person, "reject"),
        (person, "approve"),
        (person, "undo"),
    ]
    assert entries(control, "run-1", audit.Action.UNDO) == [(person, "undo", {"kind": kind, "restored": 7})]


def test_every_command_that_takes_back_puts_it_on_record() -> None:
    found = {}
    for path in sorted(COMMANDS.glob("*.py")):
        calls = {
            name
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call)
            for name in (ast.unparse(node.func), ast.unparse(node.func).rpartition(".")[2])
        }
        if calls & {"engine.undo", "run.of.undo", "drop_imports"}:
            found[path.name] = bool(calls & {"take_back", "note_undo"})
    assert found == dict.fromkeys(("run_control.py", "runs.py"), True)


def test_yes_on_the_command_line_is_an_approval_that_says_so(control: Connection) -> None:
    run_id = planned(control, "compacted")

    agree(asked(yes=True, as_json=True), MaintenanceRuns(control), run_id, "Shall it?")

    ((actor, action, effect),) = entries(control, run_id)
    assert (actor, action, effect["option"]) == (context.person(), "approve", "--yes")


@pytest.mark.parametrize("kind", [*KINDS.values(), "repair_ttl"])
@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (fresh(age_days=8.1), "a plan counts for 8 days: plan again"),
        (fresh(code_version="0.0.9"), "was planned by release 0.0.9, and this is release .*: plan again"),
        ({}, "was planned by an earlier release"),
    ],
)
def test_nobody_is_asked_about_a_plan_that_does_not_count(
    control: Connection, kind: str, plan: dict[str, Any], words: str
) -> None:
    runs = MaintenanceRuns(control)
    run_id = runs.save_plan(kind=kind, parameters={}, plan=plan).maintenance_run_id

    with pytest.raises(StalePlan, match=words):
        agree(asked(yes=True), runs, run_id, "Shall it?")

    assert entries(control, run_id) == []


@pytest.mark.parametrize(
    ("code_version", "words"),
    [
        (__version__, f"was planned by an earlier build of release {__version__}, in a form that this build does not"),
        ("0.0.9", f"was planned by release 0.0.9, and this is release {__version__}: plan again by"),
        ("", f"was planned by an earlier release, and this is release {__version__}: plan again by"),
    ],
)
def test_plan_in_an_earlier_form_is_told_from_one_of_an_earlier_release(
    control: Connection, code_version: str, words: str
) -> None:
    runs = MaintenanceRuns(control)
    run_id = runs.save_plan(kind="repair_ttl", parameters={}, plan=fresh(code_version=code_version)).maintenance_run_id

    with pytest.raises(StalePlan) as refused:
        load_plan(job_of("repair_ttl"), runs, run_id)

    assert words in str(refused.value)


def test_approval_of_the_last_minute_counts_and_ages_from_then_on() -> None:
    planned_at_ms, valid_ms = 1_000, approvals.VALID_DAYS * DAY_MS
    last_ms = planned_at_ms + valid_ms
    run = approvals.Standing(name="run 1", code_version=__version__, planned_at_ms=planned_at_ms)
    approved = approvals.Standing(
        name="run 1",
        code_version=__version__,
        planned_at_ms=planned_at_ms,
        approved_by="ann",
        approved_at_ms=last_ms - 60_000,
    )

    approvals.check_current(run, now_ms=last_ms)
    approvals.check_current(approved, now_ms=last_ms + DAY_MS)
    with pytest.raises(StalePlan, match=r"run 1 was planned .* ago, and a plan counts for 8 days: plan again"):
        approvals.check_current(run, now_ms=last_ms + 1)
    with pytest.raises(StalePlan, match=r"run 1 was approved .* ago by ann, and an approval counts for"):
        approvals.check_current(approved, now_ms=last_ms + valid_ms)


def test_run_that_was_held_up_for_long_goes_on_once_it_is_approved_again() -> None:
    valid_ms = approvals.VALID_DAYS * DAY_MS
    begun = approvals.Standing(
        name="run 1", code_version=__version__, planned_at_ms=0, approved_by="ann", approved_at_ms=1_000, begun=True
    )
    late_ms = 2 * valid_ms
    with pytest.raises(StalePlan, match=r"approved .* by ann.*: it has begun, and goes on once it is approved again"):
        approvals.check_current(begun, now_ms=late_ms)

    again = audit.Answer(action=audit.Action.APPROVE, actor="bob")
    approvals.check_current(begun.answered(again, now_ms=late_ms), now_ms=late_ms)
    with pytest.raises(StalePlan, match="before it was approved"):
        approvals.check_current(replace(begun, begun=False).answered(again, now_ms=late_ms), now_ms=late_ms)


ASKING = {"call.confirm", "self.confirm", "call.carry_out"}
ABOUT_NO_RUN = {("events.py", "dead letters"), ("partitions.py", "{policies}")}
"""Questions about messages that are delivered again, and about settings."""


def _questions() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(COMMANDS.glob("*.py")):
        if path.name in STORES:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ASKING:
                yield path.name, node


@pytest.mark.parametrize(
    ("module", "call"), [pytest.param(*each, id=f"{each[0]}:{each[1].lineno}") for each in _questions()]
)
def test_every_question_about_a_run_puts_its_answer_on_record(module: str, call: ast.Call) -> None:
    if any(module == of and words in ast.unparse(call) for of, words in ABOUT_NO_RUN):
        return
    assert "note" in {each.arg for each in call.keywords}, f"{module}: nobody would find out who answered"
