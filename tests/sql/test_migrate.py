"""Schema ``queuekeeper``: made from its files, brought there from every earlier version, never silently changed."""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuekeeper import assets, keyspace, postgres, schema_migrations
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from queuekeeper.jobs.store import Runs
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.postgres import Connection
from tests.postgres_roles import new_login

pytestmark = pytest.mark.sql

COLUMNS = """
SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
       a.attgenerated, pg_get_expr(d.adbin, d.adrelid), a.attcollation::regcollation::text
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid
     AND d.adnum = a.attnum
WHERE c.relnamespace = 'queuekeeper'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND a.attnum > 0
ORDER BY 1, 2
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, contype::text, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'queuekeeper'::regnamespace ORDER BY 1, 2
"""
INDEXES = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'queuekeeper' ORDER BY 1, 2"
RELATIONS = """
SELECT relname, relkind::text, relpersistence::text, reloptions, obj_description(oid, 'pg_class') FROM pg_class
WHERE relnamespace = 'queuekeeper'::regnamespace ORDER BY 1
"""
FUNCTIONS = """
SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc
WHERE pronamespace = 'queuekeeper'::regnamespace ORDER BY 1
"""

TRIGGERS = """
SELECT tgrelid::regclass::text, tgname, tgenabled::text, pg_get_triggerdef(oid) FROM pg_trigger
WHERE NOT tgisinternal AND tgrelid::regclass::text LIKE 'queuekeeper.%' ORDER BY 1, 2
"""


def catalog(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    queries = {"columns": COLUMNS, "constraints": CONSTRAINTS, "indexes": INDEXES}
    queries |= {"relations": RELATIONS, "functions": FUNCTIONS, "triggers": TRIGGERS}
    return {name: connection.execute(query).fetchall() for name, query in queries.items()}


_, *_parts = re.split(
    r"^==> (.+) <==\n", (Path(__file__).parents[1] / "data" / "released_migrations.txt").read_text(), flags=re.MULTILINE
)
RELEASED = dict(zip(_parts[::2], _parts[1::2], strict=True))
"""Texts of the migrations by which databases were made before their schema was made from files."""


def make_as_of(connection: Connection, version: int) -> None:
    """Make the schema as the releases of that time have made it."""
    for number, (name, text) in enumerate(list(RELEASED.items())[:version], 1):
        connection.execute(text.encode())
        connection.execute(
            "INSERT INTO queuekeeper.schema_migrations (version, name, checksum) VALUES (%s, %s, %s)",
            [number, name, hashlib.sha256(text.encode()).hexdigest()],
        )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A copy of the migrations, to be spoilt."""
    return Path(shutil.copytree(assets.directory("sql") / "migrations", tmp_path / "migrations"))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of ``sql/``, to be changed, from which the schema is made."""
    copy = Path(shutil.copytree(assets.directory("sql"), tmp_path / "sql"))
    monkeypatch.setattr(assets, "directory", {"sql": copy}.__getitem__)
    return copy


def add(files: Path, name: str, text: str) -> Path:
    path = files / name
    path.write_text(text)
    return path


def test_ledgers_hold_the_checksums_that_releases_have_entered() -> None:
    checksums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in RELEASED.items()}

    assert {each.name: each.checksum for each in schema_migrations.migrations()[: len(RELEASED)]} == checksums


@pytest.mark.parametrize("version", range(1, len(RELEASED) + 1))
def test_database_of_any_version_gets_the_schema_that_its_files_make(connection: Connection, version: int) -> None:
    schema_migrations.migrate(connection)
    made = catalog(connection)
    connection.execute("DROP SCHEMA queuekeeper CASCADE")
    make_as_of(connection, version)
    names = [each.name for each in schema_migrations.migrations()]

    assert schema_migrations.migrate(connection).applied == tuple(names[version:])
    assert catalog(connection) == made
    assert made["columns"]
    assert made["functions"]
    assert schema_migrations.migrate(connection).applied == ()


@pytest.mark.parametrize("version", [1, 3, 9, 13, len(RELEASED)])
def test_migration_that_makes_and_alters_tables_needs_no_directive(
    connection: Connection, sources: Path, version: int
) -> None:
    altered = sources / "queuekeeper" / "tables" / "audit_answers.sql"
    altered.write_text(
        altered.read_text("utf-8").replace(
            "text NOT NULL,\n    CONSTRAINT", "text NOT NULL,\n    why text,\n    CONSTRAINT"
        )
    )
    added = "CREATE TABLE queuekeeper.added (id int);\n\nALTER TABLE queuekeeper.added SET (fillfactor = 90);\n"
    (sources / "queuekeeper" / "tables" / "added.sql").write_text(added)
    number = len(schema_migrations.migrations()) + 1
    add(
        sources / "migrations",
        f"{number:04d}_added.sql",
        f"ALTER TABLE queuekeeper.audit_answers ADD COLUMN why text;\n\n{added}"
        "\n-- changes: audit_runs\nUPDATE queuekeeper.audit_runs SET subject = '';\n",
    )
    schema_migrations.migrate(connection)
    made = catalog(connection)
    connection.execute("DROP SCHEMA queuekeeper CASCADE")
    make_as_of(connection, version)

    schema_migrations.migrate(connection)
    assert catalog(connection) == made
    assert ("why",) in connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'queuekeeper.audit_answers'::regclass"
    ).fetchall()


def test_function_is_replaced_when_its_file_has_changed_and_only_then(connection: Connection, sources: Path) -> None:
    schema_migrations.migrate(connection)
    rows = "SELECT proname, xmin::text FROM pg_proc WHERE pronamespace = 'queuekeeper'::regnamespace"
    before: dict[str, Any] = dict(connection.execute(rows).fetchall())
    changed = sources / "queuekeeper" / "functions" / "key_slot.sql"
    changed.write_text(changed.read_text("utf-8").replace("RETURN crc % 16384;", "RETURN 5;"))

    assert schema_migrations.outdated(connection) == ["key_slot"]
    schema_migrations.migrate(connection)
    after: dict[str, Any] = dict(connection.execute(rows).fetchall())
    assert {name for name in after if after[name] != before[name]} == {"key_slot"}
    assert connection.execute("SELECT queuekeeper.key_slot('any')").fetchone() == (5,)
    assert schema_migrations.outdated(connection) == []


def test_view_gets_columns_that_its_file_adds_and_keeps_who_may_read_it(connection: Connection, sources: Path) -> None:
    schema_migrations.migrate(connection)
    connection.execute("GRANT SELECT ON queuekeeper.runs TO PUBLIC")
    changed = sources / "queuekeeper" / "views" / "runs.sql"
    changed.write_text(changed.read_text("utf-8").replace(" AS kept_in\n", " AS kept_in,\n    1 AS one\n"))

    schema_migrations.migrate(connection)
    row = connection.execute("SELECT relacl::text FROM pg_class WHERE oid = 'queuekeeper.runs'::regclass").fetchone()
    assert row is not None
    assert "=r/" in row[0]
    assert connection.execute("SELECT one FROM queuekeeper.runs").fetchall() == []


@pytest.fixture
def plain(connection: Connection, postgres_url: str) -> Iterator[Connection]:
    """Connection of a role that may do nothing but connect."""
    with new_login(connection, "user", url=postgres_url) as url, postgres.connect(url, autocommit=True) as opened:
        yield opened


def test_who_may_not_change_the_schema_is_sent_to_its_owner(connection: Connection, plain: Connection) -> None:
    make_as_of(connection, len(RELEASED))
    connection.execute(f"GRANT USAGE ON SCHEMA queuekeeper TO {plain.info.user}")
    connection.execute(f"GRANT SELECT ON queuekeeper.schema_migrations TO {plain.info.user}")
    with pytest.raises(RefusedError, match="have its owner run `queuekeeper database migrate`"):
        schema_migrations.migrate(plain)
    schema_migrations.migrate(connection)
    assert schema_migrations.migrate(plain).applied == ()


def test_empty_schema_that_an_administrator_has_made_is_filled_by_its_owner(
    connection: Connection, plain: Connection
) -> None:
    schema_migrations.migrate(connection)
    made = catalog(connection)
    connection.execute("DROP SCHEMA queuekeeper CASCADE")
    connection.execute(f"CREATE SCHEMA queuekeeper AUTHORIZATION {plain.info.user}")

    assert schema_migrations.migrate(plain).applied
    assert catalog(connection) == made


def test_schema_with_tables_and_no_history_is_left_alone(connection: Connection) -> None:
    schema_migrations.migrate(connection)
    connection.execute("DROP TABLE queuekeeper.schema_migrations")
    connection.execute("CREATE TABLE queuekeeper.a_table_of_theirs ()")

    with pytest.raises(RefusedError, match=r"^schema queuekeeper has a_table_of_theirs, .* and no history of migratio"):
        schema_migrations.migrate(connection)
    assert connection.execute("SELECT to_regclass('queuekeeper.schema_migrations')").fetchone() == (None,)


@pytest.mark.parametrize("granted", ["", "USAGE"])
def test_who_may_not_look_into_the_schema_is_sent_to_its_owner(
    connection: Connection, plain: Connection, granted: str
) -> None:
    schema_migrations.migrate(connection)
    if granted:
        connection.execute(f"GRANT {granted} ON SCHEMA queuekeeper TO {plain.info.user}")

    with pytest.raises(
        RefusedError, match=r"may not change schema queuekeeper .* have its owner run `queuekeeper data"
    ):
        schema_migrations.migrate(plain)


def test_differences_that_were_found_are_counted(connection: Connection) -> None:
    make_as_of(connection, 1)
    connection.execute(
        "INSERT INTO queuekeeper.plans (plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state)"
        " VALUES ('p', '{}', '', '', 0, '{0}', 'failed')"
    )
    connection.execute(
        "INSERT INTO queuekeeper.differences (plan_id, cohort, client_id, kind, expected, found)"
        " SELECT 'p', 3, client_id, 'lost', '', '' FROM unnest(ARRAY['a', 'b']) AS client_id"
    )
    schema_migrations.migrate(connection)

    assert connection.execute("SELECT cohort, kind, found FROM queuekeeper.difference_counts").fetchall() == [
        (3, "lost", 2)
    ]


def test_clients_whose_keys_have_another_tag_get_its_slot(connection: Connection) -> None:
    make_as_of(connection, 10)
    connection.execute(
        "INSERT INTO queuekeeper.session_owners (client_id, slot, owner, epoch)"
        " SELECT client_id, queuekeeper.key_slot(client_id), 'redis', 1 FROM unnest(ARRAY['}a', '%b', 'c']) client_id"
    )
    before: dict[str, Any] = dict(
        connection.execute("SELECT client_id, slot FROM queuekeeper.session_owners").fetchall()
    )
    schema_migrations.migrate(connection)
    after: dict[str, Any] = dict(
        connection.execute("SELECT client_id, slot FROM queuekeeper.session_owners").fetchall()
    )

    assert {name for name in after if after[name] != before[name]} == {"}a", "%b"}
    assert after == {name: keyspace.client_slot(name) for name in after}


def test_pace_of_a_migration_on_its_way_is_carried_over(connection: Connection) -> None:
    make_as_of(connection, 13)
    connection.execute(
        "INSERT INTO queuekeeper.plans (plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state,"
        " throttle_messages_per_s) SELECT name, '{\"mode\": \"online\"}', '', '', 0, '{0}', 'copied', 500"
        " FROM unnest(ARRAY['slow', 'free']) AS name"
    )
    connection.execute(
        "INSERT INTO queuekeeper.online_control (plan_id, paused, clients_per_s, canary)"
        " VALUES ('slow', TRUE, 20, '{3}'), ('free', FALSE, NULL, '{}')"
    )
    schema_migrations.migrate(connection)

    online = OnlineCohorts(connection)
    assert (online.control("slow").paused, online.control("slow").clients_per_s) == (True, 20)
    assert online.control("slow").canary == (3,)
    assert (online.control("free").paused, online.control("free").clients_per_s) == (False, 500)
    assert {each.kind for each in Runs(connection).newest(limit=5)} == {"online_migration"}


def test_second_run_applies_nothing(connection: Connection) -> None:
    first = schema_migrations.migrate(connection)
    names = tuple(migration.name for migration in schema_migrations.migrations())

    assert first == schema_migrations.MigrationsReport(applied=names, version=len(names))
    assert schema_migrations.migrate(connection) == schema_migrations.MigrationsReport(applied=(), version=len(names))


def test_only_missing_migrations_are_applied(connection: Connection, files: Path) -> None:
    version = schema_migrations.migrate(connection, directory=files).version
    name = f"{version + 1:04d}_one_more.sql"
    add(files, name, "CREATE TABLE queuekeeper.one_more (id int);\n-- 100 % more\n")

    assert schema_migrations.migrate(connection, directory=files).applied == (name,)


def test_changed_migration_is_named(connection: Connection, files: Path) -> None:
    number = schema_migrations.migrate(connection, directory=files).version + 1
    changed = add(files, f"{number:04d}_one_more.sql", "SELECT 1;\n")
    schema_migrations.migrate(connection, directory=files)
    changed.write_text("SELECT 2;\n")

    differs = rf"migration {changed.name} of schema queuekeeper differs .* restore the file"
    with pytest.raises(RefusedError, match=differs):
        schema_migrations.migrate(connection, directory=files)


def test_other_line_ends_are_no_change(connection: Connection, files: Path) -> None:
    schema_migrations.migrate(connection, directory=files)
    for path in files.glob("*.sql"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    assert schema_migrations.migrate(connection, directory=files).applied == ()


def test_newer_database_is_refused(connection: Connection, files: Path) -> None:
    version = schema_migrations.migrate(connection).version
    add(files, f"{version + 1:04d}_future.sql", "CREATE TABLE queuekeeper.future (id int);")
    schema_migrations.migrate(connection, directory=files)

    with pytest.raises(RefusedError, match=rf"version {version + 1}, newer than .*\({version}\): upgrade Queuekeeper"):
        schema_migrations.migrate(connection)


def test_failing_migration_leaves_nothing_behind(connection: Connection, files: Path) -> None:
    version = schema_migrations.migrate(connection, directory=files).version
    before = catalog(connection)
    add(files, f"{version + 1:04d}_good.sql", "CREATE TABLE queuekeeper.good (id int);")
    add(files, f"{version + 2:04d}_bad.sql", "CREATE TABLE queuekeeper.bad (id int); SELECT 1 / 0;")

    with pytest.raises(psycopg.errors.DivisionByZero):
        schema_migrations.migrate(connection, directory=files)
    assert catalog(connection) == before
    assert schema_migrations.schema_version(connection) == version


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2_short.sql", r"migration 2_short\.sql is misnamed"),
        ("0002-dashes.sql", r"migration 0002-dashes\.sql is misnamed"),
        ("0003_gap.sql", r"migration 0003_gap\.sql is out of order: number 0002 is expected"),
        ("0001_twice.sql", r"migration 0001_twice\.sql is out of order: number 0002 is expected"),
    ],
)
def test_misnumbered_migration_is_named(connection: Connection, tmp_path: Path, name: str, message: str) -> None:
    add(tmp_path, "0001_first.sql", "SELECT 1;")
    add(tmp_path, name, "SELECT 1;")

    with pytest.raises(UsageError, match=message):
        schema_migrations.migrate(connection, directory=tmp_path)


def test_two_processes_at_once_migrate_once(connect: Callable[[], Connection]) -> None:
    connections = [connect() for _ in range(4)]
    barrier = threading.Barrier(len(connections))

    def run(connection: Connection) -> int:
        barrier.wait()
        return len(schema_migrations.migrate(connection).applied)

    with ThreadPoolExecutor(len(connections)) as pool:
        applied = sorted(pool.map(run, connections))
    assert applied == [0, 0, 0, len(schema_migrations.migrations())]


def test_second_process_waits_for_the_first(connection: Connection, connect: Callable[[], Connection]) -> None:
    connection.execute("BEGIN")
    schema_migrations.migrate(connection)
    other, watcher = connect(), connect()
    # What role or database allow a statement is too little.
    other.execute("SET lock_timeout TO '100ms'")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(schema_migrations.migrate, other)
        query = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        while watcher.execute(query, [other.info.backend_pid]).fetchone() != ("advisory",):
            assert not waiting.done()
        watcher.execute("SELECT pg_sleep(0.3)")
        connection.execute("COMMIT")

        assert waiting.result().applied == ()


def test_table_in_use_is_not_waited_for_while_others_wait_behind(
    connection: Connection, connect: Callable[[], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_migrations, "LOCK_TIMEOUT", "200ms")
    make_as_of(connection, 13)
    user, other = connect(), connect()
    user.execute("SET application_name TO 'a report'")
    user.execute("BEGIN")
    user.execute("SELECT count(*) FROM queuekeeper.plans")

    with pytest.raises(RefusedError, match=rf"longer than 200ms: .* pid {user.info.backend_pid} \(a report, user"):
        schema_migrations.migrate(other)
    assert schema_migrations.schema_version(connection) == 13
    user.execute("COMMIT")
    assert schema_migrations.migrate(other).applied


def test_missing_privilege_is_explained(connection: Connection, postgres_url: str) -> None:
    role = f"plain_{connection.info.dbname}"
    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'")
    try:
        with (
            postgres.connect(f"{postgres_url}?user={role}&password=plain") as plain,
            pytest.raises(RefusedError, match=rf"GRANT CREATE ON DATABASE {plain.info.dbname} TO {role}"),
        ):
            schema_migrations.migrate(plain)
    finally:
        connection.execute(f"DROP ROLE {role}")


def test_session_is_pinned_whatever_role_and_database_say(connection: Connection, postgres_url: str) -> None:
    name = connection.info.dbname
    connection.execute(f"ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'")
    connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    query = (
        "SELECT current_setting('TimeZone'), current_setting('transaction_isolation'), application_name "
        "FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    )

    with postgres.connect(f"{postgres_url}?application_name=other") as pinned:
        assert pinned.execute(query).fetchone() == ("UTC", "read committed", "queuekeeper")
        assert pinned.autocommit is False


def test_wrong_password_is_explained_without_it(connection: Connection, postgres_url: str) -> None:
    with pytest.raises(ServerUnavailable) as caught:
        postgres.connect(f"{postgres_url}?user=nobody_{connection.info.dbname}&password=s3cret")

    assert f"{connection.info.host}:{connection.info.port}" in str(caught.value)
    assert "connection URL" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_unknown_database_is_explained(postgres_url: str) -> None:
    with pytest.raises(ServerUnavailable, match='"nope" does not exist; check the database name'):
        postgres.connect(f"{postgres_url}?dbname=nope")


def test_server_that_takes_no_writes_is_explained(connection: Connection) -> None:
    connection.execute("SET default_transaction_read_only = on")

    with pytest.raises(RefusedError, match=r"takes no writes: .*; name the primary server, not a standby"):
        schema_migrations.migrate(connection)


def test_broken_connection_is_explained(connection: Connection, connect: Callable[[], Connection]) -> None:
    victim = connect()
    connection.execute("SELECT pg_terminate_backend(%s, 5000)", [victim.info.backend_pid])

    with pytest.raises(ServerUnavailable, match="broke the connection"):
        schema_migrations.migrate(victim)
