"""An audit of a finished migration agrees with its ledger, and finds by itself whatever is spoilt in either store."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copy2
from typing import Any

import pytest

from queuekeeper.clock import DAY_MS, system_clock
from queuekeeper.errors import RefusedError, UnreadableSnapshot, UsageError
from queuekeeper.keyspace import packed_keys, payload_key, session_keys
from queuekeeper.migration.audit.recount import AuditExample, AuditReport, audit_migration
from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.redis_client import nodes
from queuekeeper.sessions.model import Ack, StoreRules
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.conftest import nightly
from tests.integration.command_line import CommandLine
from tests.property.migration_rules import Message
from tests.spark.test_profile_queues import saved
from tests.spark.world import PARAMETERS, World

WORLDS = {
    "tbmq": (Layout.TBMQ, "valkey"),
    "packed, cluster": (Layout.PACKED, "cluster"),
    "tbmq, cluster": (Layout.TBMQ, "cluster"),
    "packed": (Layout.PACKED, "valkey"),
}
MIGRATE = CommandLine(group="migrate", secret="secret")
NEW_SERIAL, NEW_PACKET_ID = 2**40, 65_000


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A migration that was verified, and where its files are."""

    world: World
    plan: MigrationPlan
    folder: Path

    @property
    def layout(self) -> Layout:
        """Layout of the sessions in Redis."""
        return self.plan.parameters.layout

    def files(self, name: str = "now") -> list[Path]:
        """Have each master write its snapshot, and return copies of them."""
        return [
            Path(copy2(saved(client), self.folder / f"{name}-{number}.rdb"))
            for number, (_, client) in enumerate(nodes(self.world.client))
        ]

    def audit(self, paths: list[Path] | None = None) -> AuditReport:
        """Recompute the ledger."""
        return audit_migration(
            self.world.connection, plan_id=self.plan.plan_id, paths=paths or self.files(), examples=1_000
        )


@pytest.fixture(scope="module", params=["tbmq", "packed, cluster", *nightly("tbmq, cluster", "packed")])
def finished(
    make_world: Callable[..., World],
    hostile_template: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Finished:
    layout, target = WORLDS[request.param]
    world = make_world(template=hostile_template, target=target)
    plan = world.plan(replace(PARAMETERS, layout=layout))
    made = Finished(world=world, plan=plan, folder=tmp_path_factory.mktemp("files"))
    made.files("before")
    # A file says its instant to the second.
    world.connection.execute("SELECT pg_sleep(1.1)")
    world.copy(plan.plan_id)
    assert world.verify(plan.plan_id).balanced
    return made


def _numbers(report: AuditReport) -> dict[str, tuple[int | None, int]]:
    return {each.name: (each.ledger, each.recomputed) for each in report.numbers}


def _command(finished: Finished, paths: list[Path]) -> list[str]:
    return ["audit", finished.plan.plan_id, "--postgres-url", finished.world.postgres_url] + [
        word for path in paths for word in ("--rdb", str(path))
    ]


def test_audit_of_a_finished_migration_comes_to_its_ledger_in_each_cohort(finished: Finished) -> None:
    report = finished.audit()

    assert report.agrees
    assert report.findings == ()
    assert report.sessions_elsewhere == 0
    numbers = _numbers(report)
    ledger = finished.world.ledger.ledger(finished.plan.plan_id)
    for name in ("rows_seen", "copied", "expired", "trimmed", "quarantined", "sessions_seen", "sessions_copied"):
        total = sum(getattr(row, name) for row in ledger)
        assert numbers[name] == (total, total), name
        assert total > 0
    assert [each.cohort for each in report.cohorts] == [row.cohort for row in ledger]


def test_command_tells_the_same_to_people_and_programs(finished: Finished) -> None:
    command = _command(finished, finished.files())

    told = MIGRATE.as_json(*command)
    # Without a plan, the newest one is meant.
    shown = MIGRATE.run("audit", *command[2:])

    assert told["agrees"]
    (copied,) = (each for each in told["numbers"] if each["name"] == "copied")
    assert copied["ledger"] == copied["recomputed"] == finished.plan.total("to_copy")
    assert shown.exit_code == 0
    assert shown.stdout.startswith("✓ The ledger is right")
    assert f"{copied['ledger']:,}" in shown.stdout


def test_sessions_that_the_source_does_not_have_are_counted_and_left_alone(finished: Finished) -> None:
    stranger = "of another program"
    store = RedisSessionStore(finished.world.client, rules=StoreRules(), layout=finished.layout)
    store.set_last_packet_id(stranger, expected=None, packet_id=7)
    try:
        report = finished.audit()
    finally:
        store.purge_session(stranger)

    assert report.agrees
    assert report.sessions_elsewhere == 1


def test_audit_leaves_nothing_in_the_database(finished: Finished) -> None:
    state = "SELECT (SELECT count(*) FROM pg_class), (SELECT md5(string_agg(l::text, '')) FROM queuekeeper.ledger AS l)"
    before = finished.world.connection.execute(state).fetchone()
    finished.audit()

    assert finished.world.connection.execute(state).fetchone() == before


@pytest.mark.parametrize("layout", [Layout.PACKED, *nightly(Layout.TBMQ)])
def test_sessions_in_use_are_superseded_and_lives_that_end_meanwhile_are_expired(
    make_world: Callable[..., World], healthy_template: str, layout: Layout
) -> None:
    world = make_world(template=healthy_template)
    store = RedisSessionStore(world.client, rules=StoreRules(limit=PARAMETERS.limit), layout=layout)
    now_ms = system_clock()
    ends_ms = now_ms + 8_000
    parameters = replace(PARAMETERS, layout=layout)
    clients = world.expected(world.plan(parameters, now_ms=now_ms - 2 * DAY_MS))
    stranger, used, short = [name for name, each in sorted(clients.items()) if len(each.copied) >= 3][:3]
    # It is left to chance whether the verification finds these; the snapshot does not.
    world.connection.execute(
        "UPDATE device_publish_msg SET time = %s, msg_expiry_interval = 8 WHERE client_id = %s", (now_ms, short)
    )
    store.set_last_packet_id(stranger, expected=None, packet_id=7)
    # Lives that end between the plan and its copy.
    plan = world.plan(parameters, now_ms=now_ms - 2 * DAY_MS)
    world.copy(plan.plan_id)
    acks = [Ack(packet_id=each.packet_id or 0, serial=each.serial_number) for each in clients[used].copied]
    assert store.ack(used, acks).removed > 0
    assert world.copy(plan.plan_id).sessions_moved_on == 2
    assert world.verify(plan.plan_id).balanced
    time.sleep(max(0, ends_ms + 1_000 - system_clock()) / 1_000)

    report = audit_migration(world.connection, plan_id=plan.plan_id, paths=[saved(world.client)])

    assert report.findings == ()
    assert report.agrees
    numbers = _numbers(report)
    superseded = sum(len(clients[name].copied) for name in (stranger, used))
    assert numbers["superseded"] == (superseded, superseded)
    of_ledger, recomputed = ((numbers["copied"][at] or 0) + (numbers["expired"][at] or 0) for at in (0, 1))
    assert of_ledger == recomputed
    assert numbers["expired"][1] > plan.total("expired")


# --- what is refused -------------------------------------------------------------------------------------------------


def test_files_from_before_the_copy_and_damaged_ones_are_refused(finished: Finished, tmp_path: Path) -> None:
    paths = finished.files()
    before = sorted(finished.folder.glob("before-*.rdb"))
    cut, other = tmp_path / "cut.rdb", tmp_path / "notes.txt"
    cut.write_bytes(paths[0].read_bytes()[:-100])
    other.write_text("no snapshot at all")
    damaged = bytearray(paths[0].read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    changed = tmp_path / "changed.rdb"
    changed.write_bytes(damaged)

    with pytest.raises(UsageError, match=r"before-0\.rdb was begun .* s before the last copy or replay of plan"):
        finished.audit(before)
    with pytest.raises(UnreadableSnapshot, match=r"cut\.rdb ends after"):
        finished.audit([cut, *paths[1:]])
    with pytest.raises(UnreadableSnapshot, match=r"changed\.rdb: .* The file is damaged"):
        finished.audit([changed, *paths[1:]])
    with pytest.raises(UnreadableSnapshot, match="it is no RDB file"):
        finished.audit([other])
    with pytest.raises(UsageError, match=r"none\.rdb cannot be read"):
        finished.audit([tmp_path / "none.rdb"])


def test_file_of_another_server_or_of_another_database_is_refused(
    finished: Finished, make_world: Callable[..., World], tmp_path: Path
) -> None:
    elsewhere = make_world()
    RedisSessionStore(elsewhere.client, rules=StoreRules()).set_last_packet_id("somebody", expected=None, packet_id=7)
    foreign = Path(copy2(saved(elsewhere.client), tmp_path / "foreign.rdb"))

    with pytest.raises(UsageError, match=r"database 0 of .*foreign\.rdb has no session that plan .* has imported"):
        finished.audit([foreign])
    MIGRATE.fails(
        *_command(finished, finished.files()), "--rdb-database", "3", code=2, words="database 3 of .* has no session"
    )


def test_file_of_a_replica_beside_its_masters_is_refused(finished: Finished, tmp_path: Path) -> None:
    paths = finished.files()
    replica = Path(copy2(paths[-1], tmp_path / "replica.rdb"))

    with pytest.raises(UsageError, match=r"now-\d\.rdb and .*replica\.rdb both have keys of one session"):
        finished.audit([*paths, replica])


def test_plan_that_is_unknown_or_not_finished_and_a_source_that_is_gone_are_refused(finished: Finished) -> None:
    paths = finished.files()
    connection = finished.world.connection

    with pytest.raises(UsageError, match="there is no plan 'feedfeedfeedfeed' in this database"):
        audit_migration(connection, plan_id="feedfeedfeedfeed", paths=paths)
    for state in ("copied", "failed"):
        with (
            _changed(finished, f"UPDATE queuekeeper.plans SET state = '{state}'"),
            pytest.raises(RefusedError, match=f"is {state}: an audit recomputes a finished migration. Copy and verify"),
        ):
            finished.audit(paths)
    with (
        _changed(
            finished,
            """UPDATE queuekeeper.plans SET parameters = parameters || '{"mode": "online"}'""",
            """UPDATE queuekeeper.plans SET parameters = parameters || '{"mode": "offline"}'""",
        ),
        pytest.raises(RefusedError, match="moves sessions while devices are connected"),
    ):
        finished.audit(paths)
    connection.execute("ALTER TABLE device_session_ctx RENAME TO gone")
    try:
        with pytest.raises(RefusedError, match="Restore the backup into a database, with schema queuekeeper"):
            finished.audit(paths)
    finally:
        connection.execute("ALTER TABLE gone RENAME TO device_session_ctx")
    MIGRATE.fails(*_command(finished, []), code=2, words="rdb .*: name a file that Redis has written")


@contextmanager
def _changed(finished: Finished, change: str, back: str = "") -> Iterator[None]:
    """Change the plan's record for a while."""
    connection = finished.world.connection
    connection.execute(change)
    try:
        yield
    finally:
        connection.execute(back or "UPDATE queuekeeper.plans SET state = 'verified'")


# --- what is spoilt in PostgreSQL -------------------------------------------------------------------------------------


def test_quarantined_row_that_was_deleted_is_named(finished: Finished) -> None:
    connection = finished.world.connection
    connection.execute("CREATE TEMP TABLE kept AS SELECT * FROM queuekeeper.quarantine WHERE reason = 'topic_empty'")
    client, serial, packet_id = connection.execute(
        "DELETE FROM queuekeeper.quarantine WHERE reason = 'topic_empty' RETURNING client_id, serial_number, packet_id"
    ).fetchall()[0]
    try:
        report = finished.audit()
    finally:
        connection.execute("INSERT INTO queuekeeper.quarantine OVERRIDING SYSTEM VALUE SELECT * FROM kept")
        connection.execute("DROP TABLE kept")

    (finding,) = report.findings
    assert finding.kind == "quarantine"
    assert replace(finding.examples[0], cohort=0) == AuditExample(
        cohort=0, client_id=client, serial_number=serial, packet_id=packet_id, expected="topic_empty", found="nothing"
    )
    assert not report.agrees


def test_row_that_was_put_into_the_quarantine_without_reason_is_named(finished: Finished) -> None:
    connection = finished.world.connection
    connection.execute(
        "INSERT INTO queuekeeper.quarantine (plan_id, cohort, kind, reason, detail, client_id, serial_number)"
        " SELECT plan_id, cohort, kind, reason, detail, 'nobody', 9 FROM queuekeeper.quarantine"
        " WHERE reason = 'topic_empty' LIMIT 1"
    )
    try:
        (finding,) = finished.audit().findings
    finally:
        connection.execute("DELETE FROM queuekeeper.quarantine WHERE client_id = 'nobody'")

    (example,) = finding.examples
    assert (finding.kind, example.client_id, example.expected) == ("quarantine", "nobody", "no such row")


@pytest.mark.parametrize("name", ["rows_seen", "copied", "trimmed", "superseded", "quarantined", "sessions_copied"])
def test_number_of_the_ledger_that_was_changed_is_named_with_its_cohort(finished: Finished, name: str) -> None:
    connection = finished.world.connection
    ((cohort,),) = connection.execute("SELECT max(cohort) FROM queuekeeper.ledger WHERE copied > 0").fetchall()
    change = f"UPDATE queuekeeper.ledger SET {name} = {name} + %s WHERE cohort = %s"
    connection.execute(change, (1, cohort))
    try:
        report = finished.audit()
        shown = MIGRATE.run(*_command(finished, finished.files()))
    finally:
        connection.execute(change, (-1, cohort))

    wrong = {(each.cohort, number.name) for each in report.cohorts for number in each.numbers if not number.agrees}
    assert {(cohort, name)} <= wrong <= {(cohort, name), (cohort, "expired"), (cohort, "unaccounted")}
    assert report.findings == ()
    assert shown.exit_code == 1
    assert "Numbers that differ" in shown.stdout
    assert "finds what the ledger does not have" in shown.stderr


def test_cohort_that_was_taken_out_of_the_ledger_is_named(finished: Finished) -> None:
    connection = finished.world.connection
    connection.execute("CREATE TEMP TABLE kept AS SELECT * FROM queuekeeper.ledger WHERE cohort = 1")
    connection.execute("ALTER TABLE kept DROP COLUMN unaccounted")
    connection.execute("DELETE FROM queuekeeper.ledger WHERE cohort = 1")
    try:
        report = finished.audit()
    finally:
        columns = "plan_id, cohort, rows_seen, copied, expired, trimmed, superseded, quarantined, sessions_seen,"
        columns += " sessions_copied, differences, digest, verified_at_ms"
        connection.execute(f"INSERT INTO queuekeeper.ledger ({columns}) SELECT {columns} FROM kept")
        connection.execute("DROP TABLE kept")

    assert [each.cohort for each in report.cohorts if not each.agrees] == [1]
    assert _numbers(report)["rows_seen"][0] is None


def test_row_of_the_source_that_was_changed_afterwards_is_named(finished: Finished) -> None:
    connection = finished.world.connection
    name, message = next(_untouched(finished))
    change = "UPDATE device_publish_msg SET topic = topic || %s WHERE client_id = %s AND serial_number = %s"
    connection.execute(change, ("!", name, message.serial_number))
    try:
        (finding,) = finished.audit().findings
    finally:
        connection.execute(
            change.replace("topic || %s", "left(topic, -length(%s))"), ("!", name, message.serial_number)
        )

    (example,) = finding.examples
    assert (finding.kind, example.client_id, example.found) == ("properties", name, "others: topicName")


# --- what is spoilt in Redis ------------------------------------------------------------------------------------------


class Spoiler:
    """Spoils messages of TBMQ's layout."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def delete(self, name: str, message: Message) -> None:
        key = payload_key(name, message.packet_id or 0)
        self.client.zrem(session_keys(name).messages, key)
        self.client.delete(key)

    def swap(self, name: str, one: Message, other: Message) -> None:
        keys = [payload_key(name, message.packet_id or 0) for message in (one, other)]
        self.client.zadd(
            session_keys(name).messages, dict(zip(keys, (other.serial_number, one.serial_number), strict=True))
        )

    def expire_earlier(self, name: str, message: Message) -> None:
        key = payload_key(name, message.packet_id or 0)
        self.client.pexpireat(key, self.client.pexpiretime(key) - 1)

    def exchange_payload(self, name: str, message: Message) -> None:
        self._rewrite(name, message, payload="c2VjcmV0")

    def exchange_topic(self, name: str, message: Message) -> None:
        self._rewrite(name, message, topicName="secret")

    def tear(self, name: str, message: Message) -> None:
        self.client.set(payload_key(name, message.packet_id or 0), "secret, not JSON", keepttl=True)

    def add(self, name: str, message: Message) -> None:
        key = payload_key(name, NEW_PACKET_ID)
        text = self.client.get(payload_key(name, message.packet_id or 0))
        self.client.set(key, json.dumps(json.loads(text) | {"packetId": NEW_PACKET_ID}))
        self.client.zadd(session_keys(name).messages, {key: NEW_SERIAL})

    def count_on(self, name: str) -> None:
        self.client.incr(session_keys(name).last_packet_id)

    def unfinish(self, name: str) -> None:
        self.client.hset(session_keys(name).session, "import", "1")

    def _rewrite(self, name: str, message: Message, **fields: Any) -> None:
        key = payload_key(name, message.packet_id or 0)
        self.client.set(key, json.dumps(json.loads(self.client.get(key)) | fields), keepttl=True)


class PackedSpoiler(Spoiler):
    """Spoils messages of packed sessions."""

    def delete(self, name: str, message: Message) -> None:
        self.client.hdel(packed_keys(name).session, message.serial_number)

    def swap(self, name: str, one: Message, other: Message) -> None:
        records = self._record(name, one), self._record(name, other)
        self._put(name, other.serial_number, records[0])
        self._put(name, one.serial_number, records[1])

    def expire_earlier(self, name: str, message: Message) -> None:
        record = self._record(name, message)
        (ends_ms,) = struct.unpack_from(">d", record, 2)
        self._put(name, message.serial_number, record[:2] + struct.pack(">d", ends_ms - 1) + record[10:])

    def exchange_payload(self, name: str, message: Message) -> None:
        self._put(name, message.serial_number, self._record(name, message) + b"secret")

    def exchange_topic(self, name: str, message: Message) -> None:
        topic = message.topic.encode()
        record = self._record(name, message)
        self._put(name, message.serial_number, record.replace(topic, b"!" + topic[1:], 1))

    def tear(self, name: str, message: Message) -> None:
        self._put(name, message.serial_number, self._record(name, message)[:20])

    def add(self, name: str, message: Message) -> None:
        self._put(name, NEW_SERIAL, struct.pack(">H", NEW_PACKET_ID) + self._record(name, message)[2:])

    def count_on(self, name: str) -> None:
        state = list(struct.unpack(">17d", self.client.hget(packed_keys(name).session, "s")))
        state[1] += 1
        self.client.hset(packed_keys(name).session, "s", struct.pack(">17d", *state))

    def unfinish(self, name: str) -> None:
        self.client.hset(packed_keys(name).session, "import", "1")

    def _record(self, name: str, message: Message) -> bytes:
        record: bytes = self.client.hget(packed_keys(name).session, message.serial_number)
        return record

    def _put(self, name: str, serial: int, record: bytes) -> None:
        self.client.hset(packed_keys(name).session, serial, record)


def _untouched(finished: Finished) -> Iterator[tuple[str, Message]]:
    """Yield clients whose rows were all copied, with one of these."""
    for name, each in sorted(finished.world.expected(finished.plan).items()):
        if name.startswith("sample-") and len(each.copied) == len(each.messages) >= 4:
            yield name, each.copied[1]


Places = set[tuple[str, int | None, int | None]]


@pytest.fixture(scope="module")
def spoilt(finished: Finished) -> Mapping[str, Places]:
    """Spoil one session after the other; kind -> client, serial and packet id of what has to be found."""
    spoiler = (PackedSpoiler if finished.layout is Layout.PACKED else Spoiler)(finished.world.client)
    clients = _untouched(finished)
    done: dict[str, Places] = {}

    def suffer(kind: str, spoil: Callable[[str, Message], None]) -> None:
        name, message = next(clients)
        spoil(name, message)
        done.setdefault(kind, set()).add((name, message.serial_number, message.packet_id))

    suffer("missing", spoiler.delete)
    suffer("missing", spoiler.delete)
    suffer("expiry", spoiler.expire_earlier)
    suffer("payload", spoiler.exchange_payload)
    suffer("properties", spoiler.exchange_topic)
    suffer("unreadable", spoiler.tear)

    name, message = next(clients)
    other = finished.world.expected(finished.plan)[name].copied[2]
    spoiler.swap(name, message, other)
    done["order"] = {(name, each.serial_number, each.packet_id) for each in (message, other)}

    name, message = next(clients)
    spoiler.add(name, message)
    done["unexpected"] = {(name, NEW_SERIAL, NEW_PACKET_ID)}

    name, _ = next(clients)
    spoiler.count_on(name)
    done["last_packet_id"] = {(name, None, None)}

    name, _ = next(clients)
    spoiler.unfinish(name)
    done["session_missing"] = {(name, None, None)}
    return done


@pytest.fixture(scope="module")
def found(finished: Finished, spoilt: Mapping[str, Places]) -> AuditReport:
    del spoilt
    return finished.audit()


def test_each_fault_is_found_as_what_it_is_and_nothing_else_is(
    spoilt: Mapping[str, Places], found: AuditReport
) -> None:
    places = {
        finding.kind: {(each.client_id, each.serial_number, each.packet_id) for each in finding.examples}
        for finding in found.findings
    }

    assert places == spoilt
    assert {finding.kind: finding.count for finding in found.findings} == {
        kind: len(some) for kind, some in spoilt.items()
    }


def test_faults_are_numbers_beside_the_ledger(spoilt: Mapping[str, Places], found: AuditReport) -> None:
    numbers = _numbers(found)
    rows = sum(
        len(some) for kind, some in spoilt.items() if kind not in ("unexpected", "last_packet_id", "session_missing")
    )

    assert not found.agrees
    assert numbers["unaccounted"] == (0, rows)
    assert numbers["copied"][1] == (numbers["copied"][0] or 0) - rows
    assert numbers["sessions_copied"][1] == (numbers["sessions_copied"][0] or 0) - 2
    for kind, some in spoilt.items():
        assert numbers[kind] == (0, len(some))


def test_command_names_client_and_packet_id_of_each_fault_and_shows_no_content(
    finished: Finished, spoilt: Mapping[str, Places]
) -> None:
    command = _command(finished, finished.files())
    shown = MIGRATE.run(*command)

    assert shown.exit_code == 1
    assert "secret" not in shown.output
    assert "c2VjcmV0" not in shown.output
    for kind, some in spoilt.items():
        assert kind.replace("_", " ").capitalize() in shown.stdout
        for name, _, packet_id in some:
            lines = [line.split() for line in shown.stdout.splitlines() if name in line.split()]
            assert any(packet_id is None or str(packet_id) in line for line in lines)
    told = MIGRATE.as_json(*command, code=1)
    assert {each["kind"] for each in told["findings"]} == set(spoilt)
    assert not told["agrees"]
