"""The audit: entries are only ever added, and a change of any is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from queuekeeper import audit, postgres
from queuekeeper.errors import UsageError
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.postgres import Connection
from tests.postgres_roles import new_role

pytestmark = pytest.mark.sql

HOSTILE = "1:\n2:'; DROP TABLE queuekeeper.audit; -- 𝔘\\u0000"


@pytest.fixture
def control(postgres_url: str, control_schema: None) -> Iterator[Connection]:
    """Schema ``queuekeeper`` in a database of the test's own."""
    with postgres.connect(postgres_url, autocommit=True) as connection:
        yield connection


def add(connection: Connection, *subjects: str) -> None:
    for subject in subjects:
        effect = {"kind": "test", "messages": 3, "note": HOSTILE}
        audit.record(connection, actor="operator", action=audit.Action.APPLY, subject=subject, effect=effect)


def test_entries_are_numbered_dated_and_chained_and_the_chain_holds_here_and_in_an_export(control: Connection) -> None:
    add(control, "a", HOSTILE, "c")
    first, second, third = audit.read_chain(control)

    assert [first.seq, second.seq, third.seq] == [1, 2, 3]
    assert [first.previous_hash, second.previous_hash, third.previous_hash] == ["", first.hash, second.hash]
    assert first.at <= second.at <= third.at
    assert json.loads(second.effect)["note"] == HOSTILE
    here = audit.verify_chain(audit.read_chain(control), known={2: second.hash})
    exported = [audit.AuditEntry.from_json(line) for line in audit.export(control)]
    assert here == audit.verify_chain(exported) == audit.ChainReport(entries=3, head=third.hash)


@pytest.mark.parametrize(
    "change",
    ["UPDATE queuekeeper.audit SET actor = 'nobody'", "DELETE FROM queuekeeper.audit", "TRUNCATE queuekeeper.audit"],
)
def test_entries_cannot_be_changed_not_even_by_the_owner_in_a_session_that_plays_a_replica(
    control: Connection, change: str
) -> None:
    add(control, "a")
    control.execute("SET session_replication_role = replica")

    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"of queuekeeper\.audit is refused"):
        control.execute(change.encode())
    assert audit.verify_chain(audit.read_chain(control)).entries == 1


def test_who_adds_an_entry_has_no_say_in_its_number_instant_and_hashes_and_need_not_read_any(
    control: Connection,
) -> None:
    add(control, "a")
    with new_role(control, "audit_writer") as role:
        control.execute(f"GRANT USAGE ON SCHEMA queuekeeper TO {role}")
        control.execute(f"GRANT INSERT ON queuekeeper.audit TO {role}")
        control.execute(f"SET ROLE {role}")
        control.execute(
            "INSERT INTO queuekeeper.audit (seq, at, actor, action, subject, effect, previous_hash, hash)"
            " VALUES (99, '1999-01-01', 'x', 'y', 'z', '{}', 'p', 'h')"
        )
        add(control, "b")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            control.execute("SELECT count(*) FROM queuekeeper.audit")

    assert [entry.seq for entry in audit.read_chain(control)] == [1, 2, 3]
    assert audit.verify_chain(audit.read_chain(control)).is_whole
    assert min(entry.at.year for entry in audit.read_chain(control)) > 1999


def test_every_kind_of_tampering_is_found_and_named(control: Connection) -> None:
    add(control, "a", "b", "c")
    whole = list(audit.read_chain(control))
    first, second, third = whole
    forged = replace(second, actor="nobody")
    resealed = replace(forged, hash=forged.expected_hash())
    tampered = {
        "entry 2 was changed after it was written": [first, forged, third],
        "entry 3 does not follow entry 2: one of them was replaced": [first, resealed, third],
        "entry 2 is missing: entry 3 stands in its place": [first, third],
        "entry 1 is missing: entry 2 stands in its place": [second, third],
        "entry 3 was noted elsewhere and is not there: the end of the chain was cut off": [first, second],
        "entry 2 is not the one that was noted elsewhere": [first, resealed],
    }

    for problem, entries in tampered.items():
        noted = {2: second.hash} if "not the one" in problem else {3: third.hash} if "cut off" in problem else None
        report = audit.verify_chain(entries, known=noted)
        assert report.problem == problem
        assert not report.is_whole


def test_fields_cannot_be_shifted_into_each_other(control: Connection) -> None:
    add(control, "a")
    (entry,) = audit.read_chain(control)

    assert replace(entry, actor="operatorapply", action="").expected_hash() != entry.hash


def test_writers_at_once_make_one_chain(control: Connection, postgres_url: str) -> None:
    def write(number: int) -> None:
        with postgres.connect(postgres_url, autocommit=True) as connection:
            add(connection, *(f"{number}-{each}" for each in range(10)))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))

    assert audit.verify_chain(audit.read_chain(control)).entries == 40


def test_what_is_rolled_back_leaves_no_entry(control: Connection) -> None:
    with control.transaction(force_rollback=True):
        add(control, "a")
    add(control, "b")

    assert [entry.subject for entry in audit.read_chain(control)] == ["b"]


def test_entries_are_found_by_person_action_and_subject_page_by_page(control: Connection) -> None:
    add(control, "a", "b", "a")
    audit.record(control, actor="auditor", action=audit.Action.REVEAL, subject="a", effect={})

    def found(before_seq: int | None = None, limit: int = 200, **wanted: Any) -> list[int]:
        entries = audit.latest(control, wanted=audit.AuditFilter(**wanted), before_seq=before_seq, limit=limit)
        return [entry.seq for entry in entries]

    assert found() == [4, 3, 2, 1]
    assert found(subject="a") == [4, 3, 1]
    assert found(subject="a", limit=2) == [4, 3]
    assert found(subject="a", before_seq=3) == [1]
    assert found(actor="auditor", action="reveal") == [4]
    assert found(actor="nobody") == []


def test_approval_and_effects_of_a_run_are_on_record_without_texts_of_its_report(control: Connection) -> None:
    runs = MaintenanceRuns(control)
    run_id = runs.save_plan(kind="expired_reference_cleanup", parameters={}, plan={}).maintenance_run_id
    runs.approve(run_id, "ann")
    runs.save_report(run_id, {"removed": 7, "counts": {"dead": 7}, "shards": ["host:1"], "who": "meter-17"})

    approved, applied = audit.read_chain(control)
    assert (approved.actor, approved.action, approved.subject) == ("ann", "approve", run_id)
    assert (applied.actor, applied.action) == ("ann", "apply")
    assert json.loads(applied.effect) == {"kind": "expired_reference_cleanup", "removed": 7, "counts": {"dead": 7}}
    runs.save_report(run_id, {"removed": 0, "dry_run": True})
    assert len(list(audit.read_chain(control))) == 2


def test_line_that_is_no_entry_is_refused() -> None:
    for line in ("", "[]", "{}", '{"seq": 1}'):
        with pytest.raises(UsageError, match="no entry of an audit"):
            audit.AuditEntry.from_json(line)


def test_effect_is_told_with_instants_and_without_what_is_nothing() -> None:
    effect = {
        "generated_at_ms": 1_796_046_531_220,
        "waited_ms": 250,
        "counts": {"queues": 2, "skipped": 0},
        "clean": True,
    }
    entry = audit.AuditEntry(
        seq=1, at=datetime(2026, 11, 30, tzinfo=UTC), actor="ada", action="apply", subject="run", report_hash=None,
        effect=json.dumps(effect), previous_hash="", hash="",
    )  # fmt: skip
    assert entry.effect_words == (
        ("generated at", "2026-11-30 13:48:51 UTC"), ("waited ms", "250"), ("counts queues", "2"), ("clean", "yes"),
    )  # fmt: skip
