"""A hostile database moved whole: into the embedded server, into Redis where there is one, and into a cluster."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import functions as F

from queuekeeper import keyspace
from queuekeeper.errors import StalePlan
from queuekeeper.migration import preflight
from queuekeeper.migration.ledger.ledger import QuarantinedRow
from queuekeeper.migration.ledger.model import CohortState, CopyReport, MigrationPlan, PlanState, VerifyReport
from queuekeeper.migration.ledger.status import migration_status
from queuekeeper.migration.offline.source import SESSION_COLUMNS, layout, open_source
from queuekeeper.migration.servers import SESSIONS
from queuekeeper.redis_client import is_cluster, shards
from tests.conftest import REDIS_FLAVOURS, nightly
from tests.spark.world import PARAMETERS, Client, World, sessions_in

pytestmark = pytest.mark.usefixtures("compiling")

SOME = "0-2,7"
SOME_COHORTS = {0, 1, 2, 7}


@dataclass(frozen=True, kw_only=True)
class Migrated:
    """One migration, with what was seen on the way."""

    world: World
    plan: MigrationPlan
    keys_after_plan: int
    copies: list[CopyReport]
    after_some: dict[bytes, tuple[Any, int]]
    states_after_some: dict[int, CohortState]
    after_all: dict[bytes, tuple[Any, int]]
    after_again: dict[bytes, tuple[Any, int]]
    report: VerifyReport
    clients: dict[str, Client]

    def cohort_of(self, client_id: str) -> int:
        """Return the cohort by looking, not by searching as the job does."""
        slot = keyspace.client_slot(client_id) if client_id else 0
        return next(c.cohort for c in self.plan.cohorts if c.slot_first <= slot <= c.slot_last)


@pytest.fixture(scope="module", params=[*nightly(*REDIS_FLAVOURS), "cluster"])
def migrated(request: pytest.FixtureRequest, make_world: Callable[..., World], hostile_template: str) -> Migrated:
    world = make_world(template=hostile_template, target=request.param)
    plan = world.plan(run_id="first")
    keys_after_plan = len(world.contents())
    copies = [world.copy(plan.plan_id, SOME)]
    after_some = world.contents()
    states = world.ledger.cohort_states(plan.plan_id)
    copies.append(world.copy(plan.plan_id))
    after_all = world.contents()
    copies.append(world.copy(plan.plan_id))
    return Migrated(
        world=world,
        plan=plan,
        keys_after_plan=keys_after_plan,
        copies=copies,
        after_some=after_some,
        states_after_some=states,
        after_all=after_all,
        after_again=world.contents(),
        report=world.verify(plan.plan_id),
        clients=world.expected(plan),
    )


def test_plan_counts_each_cohort_as_the_rules_do_and_writes_nothing_to_redis(migrated: Migrated) -> None:
    assert migrated.keys_after_plan == 0
    expected: dict[int, Counter[str]] = {cohort.cohort: Counter() for cohort in migrated.plan.cohorts}
    for name, client in migrated.clients.items():
        counts = expected[migrated.cohort_of(name)]
        counts["sessions"] += client.session is not None
        counts["clients"] += bool(client.messages)
        counts["messages"] += len(client.messages)
        counts["payload_bytes"] += sum(len(message.payload) for message in client.messages)
        counts["longest_queue"] = max(counts["longest_queue"], len(client.messages))
        for message in client.messages:
            counts[client.fate(message)] += 1
    names = ("sessions", "clients", "messages", "payload_bytes", "longest_queue", "expired", "trimmed", "quarantined")
    for cohort in migrated.plan.cohorts:
        found = {name: getattr(cohort, name) for name in names} | {"copied": cohort.to_copy}
        assert found == {name: expected[cohort.cohort][name] for name in found}, cohort.cohort
    assert all(migrated.plan.total(name) > 0 for name in ("to_copy", "expired", "trimmed", "quarantined"))
    assert migrated.world.ledger.plan_of_run("first") == migrated.plan.plan_id


def test_every_session_is_in_redis_as_the_rules_say(migrated: Migrated) -> None:
    found = sessions_in(migrated.after_all, set(migrated.clients))
    expected = {name: client.target() for name, client in migrated.clients.items() if name and client.imported}
    assert found == expected
    assert any(not target.messages and target.last_packet_id for target in found.values()), "no empty session seen"
    assert any(target.last_packet_id is None for target in found.values()), "no session without a counter seen"


def test_any_client_id_has_its_messages_where_tbmq_looks(migrated: Migrated) -> None:
    target: Any = migrated.world.client
    seen = 0
    for name, client in migrated.clients.items():
        ids = [message.packet_id for message in client.messages if client.fate(message) == "copied"]
        if ids and name[0] in "}%":
            assert target.zrange(f"{{{name}}}_messages", 0, -1) == [f"{{{name}}}_messages_{n}".encode() for n in ids]
            record = json.loads(target.get(f"{{{name}}}_messages_{ids[-1]}"))
            assert (record["clientId"], record["packetId"]) == (name, ids[-1])
            seen += 1
    assert seen


def test_cluster_is_not_given_what_it_cannot_serve(migrated: Migrated) -> None:
    rows = sum(
        len(client.messages) + (client.session is not None)
        for name, client in migrated.clients.items()
        if name.startswith("}") and is_cluster(migrated.world.client)
    )
    assert rows or not is_cluster(migrated.world.client)
    assert migrated.plan.quarantined_by_reason().get("client_id_scattered", 0) == rows


def test_copy_of_some_cohorts_leaves_the_others_alone(migrated: Migrated) -> None:
    found = sessions_in(migrated.after_some, set(migrated.clients))
    assert found == {
        name: client.target()
        for name, client in migrated.clients.items()
        if name and client.imported and migrated.cohort_of(name) in SOME_COHORTS
    }
    assert {
        cohort for cohort, state in migrated.states_after_some.items() if state is CohortState.COPIED
    } == SOME_COHORTS


def test_copies_report_what_they_wrote_and_a_repeated_one_changes_nothing(migrated: Migrated) -> None:
    some, rest, again = migrated.copies
    imported = sum(1 for name, client in migrated.clients.items() if name and client.imported)
    assert some.messages_written + rest.messages_written == migrated.plan.total("to_copy")
    assert some.sessions_written + rest.sessions_written == imported
    assert rest.sessions_unchanged == some.sessions_written > 0
    assert (again.messages_written, again.sessions_written, again.sessions_unchanged) == (0, 0, imported)
    assert [copy.messages_expired + copy.sessions_moved_on for copy in migrated.copies] == [0, 0, 0]
    assert migrated.after_again == migrated.after_all


def test_verification_accounts_for_every_row_and_finds_no_difference(migrated: Migrated) -> None:
    assert migrated.world.ledger.differences(migrated.plan.plan_id) == []
    assert migrated.report.balanced
    rows = {row.cohort: row for row in migrated.report.ledger}
    assert set(rows) == {cohort.cohort for cohort in migrated.plan.cohorts}
    for cohort in migrated.plan.cohorts:
        row = rows[cohort.cohort]
        assert (row.rows_seen, row.copied, row.expired, row.trimmed, row.quarantined, row.superseded) == (
            cohort.messages, cohort.to_copy, cohort.expired, cohort.trimmed, cohort.quarantined, 0,
        )  # fmt: skip
        assert row.unaccounted == 0
        assert row.sessions_copied == row.sessions_seen
    assert sum(row.sessions_seen for row in rows.values()) == sum(
        1 for name, client in migrated.clients.items() if name and client.imported
    )
    stored = migrated.world.ledger.load_plan(migrated.plan.plan_id)
    assert stored.state is PlanState.VERIFIED
    assert migrated.world.ledger.ledger(migrated.plan.plan_id) == migrated.report.ledger
    # The bars of the plan's page are full, whatever the messages have become.
    status = migration_status(migrated.world.ledger.connection, migrated.plan.plan_id, now_ms=migrated.plan.as_of_ms)
    for step in (status.copy, status.verify):
        assert (step.done, step.left_words()) == (migrated.plan.total("to_copy"), "done")


def test_quarantine_holds_every_bad_row_whole_with_its_reason(migrated: Migrated) -> None:
    found = {
        (row.kind, row.client_id, row.serial_number): row
        for row in migrated.world.ledger.quarantined(migrated.plan.plan_id, limit=None)
    }
    expected: dict[tuple[str, str, int | None], str] = {}
    for name, client in migrated.clients.items():
        if client.session is not None and client.decision.session_reason is not None:
            expected["session", name, None] = client.decision.session_reason
            assert found["session", name, None].last_packet_id == client.session.last_packet_id
        for message in client.messages:
            outcome = client.decision.messages[message.serial_number]
            if outcome.reason is not None:
                expected["message", name, message.serial_number] = outcome.reason
                row = found["message", name, message.serial_number]
                assert {column: getattr(row, column) for column in message._fields} == message._asdict()
    assert {key: row.reason for key, row in found.items()} == expected
    assert {row.cohort for row in found.values()} == {migrated.cohort_of(client_id) for _, client_id, _ in expected}
    assert not any(_shows_content(row) for row in found.values())


def _shows_content(row: QuarantinedRow) -> bool:
    content = [row.topic, row.user_properties, row.content_type, row.response_topic]
    return any(value and len(value) > 8 and value in row.detail for value in content)


def test_cohorts_and_tasks_stay_within_one_shard(migrated: Migrated) -> None:
    world, plan = migrated.world, migrated.plan
    for cohort in plan.cohorts:
        holders = [
            address
            for first, last, address in shards(world.client)
            if first <= cohort.slot_first and cohort.slot_last <= last
        ]
        assert holders == [cohort.shard]
    placement = layout(cohorts=plan.cohorts, wanted=plan.chosen, tasks=4)
    shard_of = {cohort.cohort: cohort.shard for cohort in plan.cohorts}
    assert sorted(cohort for group in placement.groups for cohort in group) == list(plan.chosen)
    assert all(len({shard_of[cohort] for cohort in group}) == 1 for group in placement.groups)
    with open_source(world.spark, postgres_url=world.postgres_url, placement=placement) as source:
        rows = (
            source.partitioned(source.read(SESSIONS, SESSION_COLUMNS))
            .groupBy(F.spark_partition_id().alias("part"))
            .agg(F.collect_set("cohort").alias("cohorts"))
            .collect()
        )
    assert len(rows) == placement.tasks
    for row in rows:
        assert set(row["cohorts"]) <= set(placement.groups[row["part"]])


def test_a_changed_source_makes_the_plan_stale(migrated: Migrated) -> None:
    world = migrated.world
    before = world.contents()
    world.connection.execute("UPDATE device_session_ctx SET last_packet_id = 77 WHERE client_id = 'sample-000001'")
    try:
        for step in (world.copy, world.verify):
            with pytest.raises(StalePlan, match=r"the source has changed since plan .* stop the broker") as raised:
                step(migrated.plan.plan_id)
            assert raised.value.exit_code == 3
        assert preflight.source_fingerprint(world.connection) != migrated.plan.source_fingerprint
    finally:
        client = migrated.clients["sample-000001"]
        assert client.session is not None
        world.connection.execute(
            "UPDATE device_session_ctx SET last_packet_id = %s WHERE client_id = 'sample-000001'",
            (client.session.last_packet_id,),
        )
    assert preflight.source_fingerprint(world.connection) == migrated.plan.source_fingerprint
    assert world.contents() == before


def test_a_plan_of_another_release_is_stale(migrated: Migrated) -> None:
    world = migrated.world
    world.connection.execute("UPDATE queuekeeper.plans SET code_version = '0.0.1'")
    try:
        with pytest.raises(StalePlan, match=r"was planned by release 0\.0\.1, and this is .*: plan again"):
            world.copy(migrated.plan.plan_id)
    finally:
        world.connection.execute("UPDATE queuekeeper.plans SET code_version = %s", (migrated.plan.code_version,))


def test_parameters_are_the_ones_asked_for(migrated: Migrated) -> None:
    assert migrated.world.ledger.load_plan(migrated.plan.plan_id).parameters == PARAMETERS
