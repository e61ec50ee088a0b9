"""Migrations of schema ``queuekeeper``: equal to the readable state, applied once, never silently changed."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuekeeper import assets, postgres
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from queuekeeper.jobs.store import Runs
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.postgres import Connection

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


def create_readable_state(connection: Connection) -> None:
    """Apply ``sql/queuekeeper``, each table after those that it says it needs."""
    directory = assets.directory("sql") / "queuekeeper"
    connection.execute((directory / "schema.sql").read_text("utf-8"))
    for path in sorted((directory / "functions").glob("*.sql")):
        connection.execute(path.read_text("utf-8"))
    waiting = {path.stem: path.read_text("utf-8") for path in sorted((directory / "tables").glob("*.sql"))}
    done: set[str] = set()
    while waiting:
        ready = [
            name for name, text in waiting.items() if set(re.findall(r"^-- needs: (\w+)$", text, re.MULTILINE)) <= done
        ]
        assert ready, f"tables wait for each other: {sorted(waiting)}"
        for name in ready:
            connection.execute(waiting.pop(name))
            done.add(name)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A copy of the migrations, to be spoilt."""
    return Path(shutil.copytree(assets.directory("sql") / "migrations", tmp_path / "migrations"))


def add(files: Path, name: str, text: str) -> Path:
    path = files / name
    path.write_text(text)
    return path


def test_all_migrations_give_the_readable_schema(connection: Connection) -> None:
    postgres.migrate(connection)
    migrated = catalog(connection)
    connection.execute("DROP SCHEMA queuekeeper CASCADE")
    create_readable_state(connection)

    assert catalog(connection) == migrated
    assert migrated["columns"]


def test_pace_of_a_migration_on_its_way_is_carried_over(connection: Connection, files: Path) -> None:
    later = [path for path in files.glob("*.sql") if path.name > "0014"]
    for path in later:
        path.rename(path.with_suffix(".later"))
    postgres.migrate(connection, directory=files)
    connection.execute(
        "INSERT INTO queuekeeper.plans (plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state,"
        " throttle_messages_per_s) SELECT name, '{\"mode\": \"online\"}', '', '', 0, '{0}', 'copied', 500"
        " FROM unnest(ARRAY['slow', 'free']) AS name"
    )
    connection.execute(
        "INSERT INTO queuekeeper.online_control (plan_id, paused, clients_per_s, canary)"
        " VALUES ('slow', TRUE, 20, '{3}'), ('free', FALSE, NULL, '{}')"
    )
    for path in later:
        path.with_suffix(".later").rename(path)
    postgres.migrate(connection, directory=files)

    online = OnlineCohorts(connection)
    assert (online.control("slow").paused, online.control("slow").clients_per_s) == (True, 20)
    assert online.control("slow").canary == (3,)
    assert (online.control("free").paused, online.control("free").clients_per_s) == (False, 500)
    assert {each.kind for each in Runs(connection).newest(limit=5)} == {"online_migration"}


def test_second_run_applies_nothing(connection: Connection) -> None:
    first = postgres.migrate(connection)
    names = tuple(migration.name for migration in postgres.migrations())

    assert first == postgres.MigrationsReport(applied=names, version=len(names))
    assert postgres.migrate(connection) == postgres.MigrationsReport(applied=(), version=len(names))


def test_only_missing_migrations_are_applied(connection: Connection, files: Path) -> None:
    version = postgres.migrate(connection, directory=files).version
    name = f"{version + 1:04d}_one_more.sql"
    add(files, name, "CREATE TABLE queuekeeper.one_more (id int);\n-- 100 % more\n")

    assert postgres.migrate(connection, directory=files).applied == (name,)


def test_changed_migration_is_named(connection: Connection, files: Path) -> None:
    postgres.migrate(connection, directory=files)
    changed = files / "0001_control_schema.sql"
    changed.write_text(changed.read_text() + "-- improved\n")

    with pytest.raises(RefusedError, match=r"migration 0001_control_schema\.sql differs .* restore the file"):
        postgres.migrate(connection, directory=files)


def test_other_line_ends_are_no_change(connection: Connection, files: Path) -> None:
    postgres.migrate(connection, directory=files)
    for path in files.glob("*.sql"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    assert postgres.migrate(connection, directory=files).applied == ()


def test_newer_database_is_refused(connection: Connection, files: Path) -> None:
    version = postgres.migrate(connection).version
    add(files, f"{version + 1:04d}_future.sql", "CREATE TABLE queuekeeper.future (id int);")
    postgres.migrate(connection, directory=files)

    with pytest.raises(RefusedError, match=rf"version {version + 1}, newer than .*\({version}\): upgrade Queuekeeper"):
        postgres.migrate(connection)


def test_failing_migration_leaves_nothing_behind(connection: Connection, files: Path) -> None:
    version = len(postgres.migrations(files))
    add(files, f"{version + 1:04d}_good.sql", "CREATE TABLE queuekeeper.good (id int);")
    add(files, f"{version + 2:04d}_bad.sql", "CREATE TABLE queuekeeper.bad (id int); SELECT 1 / 0;")

    with pytest.raises(psycopg.errors.DivisionByZero):
        postgres.migrate(connection, directory=files)
    assert connection.execute("SELECT to_regnamespace('queuekeeper') IS NULL").fetchone() == (True,)


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
        postgres.migrate(connection, directory=tmp_path)


def test_two_processes_at_once_migrate_once(connect: Callable[[], Connection]) -> None:
    connections = [connect() for _ in range(4)]
    barrier = threading.Barrier(len(connections))

    def run(connection: Connection) -> int:
        barrier.wait()
        return len(postgres.migrate(connection).applied)

    with ThreadPoolExecutor(len(connections)) as pool:
        applied = sorted(pool.map(run, connections))
    assert applied == [0, 0, 0, len(postgres.migrations())]


def test_second_process_waits_for_the_first(connection: Connection, connect: Callable[[], Connection]) -> None:
    connection.execute("BEGIN")
    postgres.migrate(connection)
    other, watcher = connect(), connect()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(postgres.migrate, other)
        query = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        while watcher.execute(query, [other.info.backend_pid]).fetchone() != ("advisory",):
            assert not waiting.done()
        connection.execute("COMMIT")

        assert waiting.result().applied == ()


def test_missing_privilege_is_explained(connection: Connection, postgres_url: str) -> None:
    role = f"plain_{connection.info.dbname}"
    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'")
    try:
        with (
            postgres.connect(f"{postgres_url}?user={role}&password=plain") as plain,
            pytest.raises(RefusedError, match=rf"GRANT CREATE ON DATABASE {plain.info.dbname} TO {role}"),
        ):
            postgres.migrate(plain)
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
        postgres.migrate(connection)


def test_broken_connection_is_explained(connection: Connection, connect: Callable[[], Connection]) -> None:
    victim = connect()
    connection.execute("SELECT pg_terminate_backend(%s, 5000)", [victim.info.backend_pid])

    with pytest.raises(ServerUnavailable, match="broke the connection"):
        postgres.migrate(victim)
