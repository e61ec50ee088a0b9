"""A plain table becomes a partitioned one while it is written to: what is kept, refused, compared, and taken back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
import pytest

from queuekeeper.errors import CheckFailed, MaintenanceRunning, QueuekeeperError, RefusedError, StalePlan, UsageError
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.model import AnyOutcome, AnyPlan
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.partitions.adoption.job import Adoption
from queuekeeper.maintenance.partitions.adoption.model import Act, AdoptionParameters
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.plan import plan_retirement
from queuekeeper.maintenance.partitions.policies import load_policy
from queuekeeper.postgres import Connection
from tests.conftest import nightly
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.sql

NOW_MS = 1_795_262_400_000  # 2026-11-21 12:00 UTC
NOW = "timestamptz '2026-11-21 12:00+00'"
PLAIN = "CREATE TABLE readings (id bigserial PRIMARY KEY, at timestamptz NOT NULL, value text)"
FILL = (
    f"INSERT INTO readings (at, value) SELECT {NOW} - i * interval '17 minutes', md5(i::text) "
    "FROM generate_series(1, 700) AS i"
)
Tell = Callable[[str], None]


def asked(table: str = "public.readings", act: Act = Act.ADOPT, **others: Any) -> AdoptionParameters:
    rules = {"key": "at", "step": "1 day", "ahead": "2 days", "disk_mib": 500, "widen_keys": True, "batch_rows": 100}
    return AdoptionParameters(**{"table": table, "act": act, **(rules if act is Act.ADOPT else {}), **others})


def engine(connection: Any, say: Tell = lambda _: None) -> Engine:
    return Engine(job=Adoption, database=connection, clock=lambda: NOW_MS, say=say)


def planned(connection: Any, parameters: AdoptionParameters) -> AnyPlan:
    return engine(connection).plan(parameters)


def approved(connection: Any, records: Connection, parameters: AdoptionParameters) -> str:
    """Plan, and have a person agree; return the run."""
    runs = MaintenanceRuns(records)
    run_id = engine(connection).save(runs, planned(connection, parameters)).maintenance_run_id
    records.execute(
        "UPDATE queuekeeper.maintenance_runs SET approved_by = 'ada', approved_at = to_timestamp(%s) "
        "WHERE maintenance_run_id = %s",
        [NOW_MS / 1_000, run_id],
    )
    return run_id


def carry_out(
    connection: Any, parameters: AdoptionParameters, *, records: Connection | None = None, say: Tell = lambda _: None
) -> AnyOutcome:
    runs = MaintenanceRuns(records or connection)
    run_id = approved(connection, runs.connection, parameters)
    engine(connection, say).apply(runs, run_id, parameters.table)
    return engine(connection).report(runs, run_id, dry_run=False)


@pytest.fixture
def table(connection: Connection, control_schema: None) -> Connection:
    """A plain table of eight days."""
    connection.execute(PLAIN)
    connection.execute(FILL.encode())
    return connection


def rows(connection: Connection, table: str = "readings") -> list[Any]:
    return connection.execute(f"SELECT * FROM {table} ORDER BY id, at".encode()).fetchall()


def kind(connection: Connection, table: str = "readings") -> Any:
    return connection.execute("SELECT relkind FROM pg_class WHERE oid = to_regclass(%s)", [table]).fetchone()[0]  # type: ignore[index]


def leftovers(connection: Connection) -> list[str]:
    query = (
        "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'queuekeeper\\_adopt%' UNION "
        "SELECT tgname FROM pg_trigger WHERE tgname LIKE 'queuekeeper\\_adoption%' UNION "
        "SELECT relname FROM pg_class WHERE relname LIKE 'readings\\_p%' AND relkind = 'r'"
    )
    return [name for (name,) in connection.execute(query)]


# --- plan and refusals --------------------------------------------------------------------------------------------


def test_a_plan_tells_sql_locks_and_rows_and_writes_nothing(table: Connection) -> None:
    plan = planned(table, asked())
    assert (plan.counts.copied, plan.counts.exchanged) == (700, 1)
    statements = dict(plan.found.statements)
    assert plan.found.partitions == 11  # nine days with rows, and two ahead up to the end of a day
    assert sum(" ATTACH PARTITION " in words for words in statements) == plan.found.partitions
    (lock,) = [lock for words, lock in statements.items() if words.startswith("LOCK TABLE")]
    assert "ACCESS EXCLUSIVE" in lock
    (trigger,) = [lock for words, lock in statements.items() if "CREATE TRIGGER" in words and "SHARE ROW" in lock]
    assert "writers wait" in trigger
    # People read the statements of one partition, in the place of eleven.
    (shown,) = (each.rows for each in Adoption.tables(plan))
    assert sum(" ATTACH PARTITION " in words for words, _ in shown) == 1
    assert {words for words, _ in shown} - statements.keys() == {
        "-- the same for 10 more partitions; --json shows every statement"
    }
    told = dict(Adoption.plan_rows(plan))
    assert told["Keys"].startswith("unique together with at only")
    assert told["Others wait"] == "at most 1,000 ms"
    assert leftovers(table) == []
    assert kind(table) == "r"


REFUSED: dict[str, tuple[str, str]] = {
    "no primary key": ("ALTER TABLE readings DROP CONSTRAINT readings_pkey", "it has no primary key"),
    "null key": ("ALTER TABLE readings ALTER at DROP NOT NULL", "ALTER COLUMN at SET NOT NULL first"),
    "no column": ("ALTER TABLE readings RENAME at TO moment", "it has no column at"),
    "wrong type": ("ALTER TABLE readings ALTER at TYPE interval USING interval '1 day'", "is of type interval"),
    "text": ("ALTER TABLE readings ALTER at TYPE text", "column at is text: adopt by a time, a date or an integer"),
    "inherits": ("CREATE TABLE more () INHERITS (readings)", "others inherit from it"),
    "unlogged": ("ALTER TABLE readings SET UNLOGGED", "it is unlogged"),
    "generated": ("ALTER TABLE readings ADD long int GENERATED ALWAYS AS (id * 2) STORED", "column long is generated"),
    "partitioned": (
        ("DROP TABLE readings; CREATE TABLE readings (id int, at timestamptz, PRIMARY KEY (id, at)) "
        "PARTITION BY RANGE (at)"),
        "it is partitioned already",
    ),
    "a view": ("CREATE VIEW recent AS SELECT * FROM readings", "view recent refers to it"),
    "a function": (
        "CREATE FUNCTION many() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM readings; END",
        "function many() refers to it",
    ),
    "refers": (
        ("CREATE TABLE devices (id bigint PRIMARY KEY); ALTER TABLE readings ADD CONSTRAINT known FOREIGN KEY (id) "
        "REFERENCES devices NOT VALID"),
        "constraint known refers to devices",
    ),
    "is referred to": (
        "CREATE TABLE notes (of bigint CONSTRAINT whose REFERENCES readings)",
        "constraint whose of notes refers to the table",
    ),
    "unvalidated": ("ALTER TABLE readings ADD CONSTRAINT ok CHECK (id > 0) NOT VALID", "ok is not validated"),
    "exclusion": ("ALTER TABLE readings ADD CONSTRAINT one EXCLUDE (value WITH =)", "constraint one is an exclusion"),
    "unique index": ("CREATE UNIQUE INDEX lone ON readings (md5(value))", "index lone is unique without column at"),
    "deferrable": (
        "ALTER TABLE readings ADD CONSTRAINT late UNIQUE (value) DEFERRABLE", "constraint late is deferrable"
    ),
    "published": ("CREATE PUBLICATION news FOR TABLE readings", "publication news names it"),
    "published with its schema": (
        "CREATE PUBLICATION news FOR TABLES IN SCHEMA public", "news publishes all tables of schema public"
    ),
    "published with all": ("CREATE PUBLICATION news FOR ALL TABLES", "publication news publishes all tables, also the"),
    "a rule": (
        "CREATE TABLE log (id bigint); CREATE RULE also AS ON INSERT TO readings DO ALSO INSERT INTO log VALUES (1)",
        "rule also would stay with the table that is set aside",
    ),
    "replica identity": ("ALTER TABLE readings REPLICA IDENTITY FULL", "its REPLICA IDENTITY is not the default"),
    "constraint trigger": (
        ("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE CONSTRAINT TRIGGER "
        "late AFTER INSERT ON readings DEFERRABLE FOR EACH ROW EXECUTE FUNCTION f()"),
        "trigger late is a constraint trigger",
    ),
    "infinity": ("UPDATE readings SET at = 'infinity' WHERE id = 1", "column at holds infinity in some row"),
    "far away": ("UPDATE readings SET at = '1970-01-01' WHERE id = 1", "take a longer step"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_cannot_be_adopted_is_refused_in_words_before_anything_is_written(
    table: Connection, name: str
) -> None:
    change, words = REFUSED[name]
    table.execute(change.encode())
    with pytest.raises(RefusedError) as refused:
        planned(table, asked())
    assert words in str(refused.value)
    assert leftovers(table) == []


def test_a_table_that_a_subscription_fills_is_refused_since_replication_would_pass_over_the_new_one(
    table: Connection,
) -> None:
    table.execute("CREATE SUBSCRIPTION feed CONNECTION '' PUBLICATION news WITH (connect = false, slot_name = NONE)")
    try:
        planned(table, asked())
        # What REFRESH PUBLICATION does, which would need a second server.
        table.execute(
            "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) "
            "SELECT oid, 'readings'::regclass, 'r' FROM pg_subscription WHERE subname = 'feed'"
        )
        with pytest.raises(RefusedError, match=r"subscription feed writes into it, and would leave out all rows"):
            planned(table, asked())
    finally:
        table.execute("DROP SUBSCRIPTION feed")


def test_keys_are_widened_only_where_a_person_allows_it(table: Connection) -> None:
    with pytest.raises(RefusedError, match=r"constraint readings_pkey does not hold column at.*--widen-keys"):
        planned(table, asked(widen_keys=False))


def test_too_little_disk_for_a_second_copy_is_refused(table: Connection) -> None:
    table.execute(
        "INSERT INTO readings (at, value) SELECT at, repeat(value, 40) FROM readings CROSS JOIN generate_series(1, 3)"
    )
    with pytest.raises(RefusedError, match=r"1 MiB of disk are not enough; free disk and raise --disk-mib"):
        planned(table, asked(disk_mib=1))


def test_names_of_up_to_63_bytes_are_refused_where_dates_do_not_fit_behind_them(table: Connection) -> None:
    for name, is_refused in (("n" * 40, False), ("n" * 41, True), ("n" * 63, True)):
        table.execute(f"ALTER TABLE readings RENAME TO {name}".encode())
        if is_refused:
            with pytest.raises(RefusedError, match=f"its name has {len(name)} bytes.*rename the table to at most 40"):
                planned(table, asked(f"public.{name}"))
        else:
            carry_out(table, asked(f"public.{name}"))
            carry_out(table, asked(f"public.{name}", Act.BACK))
        table.execute(f"ALTER TABLE {name} RENAME TO readings".encode())


@pytest.mark.parametrize("left_out", ["key", "step", "ahead", "disk_mib"])
def test_adopting_names_what_it_needs(table: Connection, left_out: str) -> None:
    nothing: Any = None if left_out == "disk_mib" else ""
    with pytest.raises(UsageError, match=f"{left_out} is missing: adopting a table needs it"):
        planned(table, asked(**{left_out: nothing}))


def test_a_role_that_does_not_own_the_table_is_refused(table: Connection, connect: Callable[[], Connection]) -> None:
    other = connect()
    with _stranger(table) as role:
        other.execute(f"SET ROLE {role}".encode())
        with pytest.raises(RefusedError, match=r"it belongs to postgres: connect as that role, or grant it"):
            planned(other, asked())


@contextmanager
def _stranger(connection: Connection) -> Iterator[str]:
    connection.execute("DROP ROLE IF EXISTS queuekeeper_stranger")
    connection.execute("CREATE ROLE queuekeeper_stranger")
    yield "queuekeeper_stranger"


# --- what is kept -------------------------------------------------------------------------------------------------

DECORATED = """
CREATE TABLE readings (
    id bigserial, at timestamptz NOT NULL DEFAULT now(), "Value %" text COLLATE "C",
    number int GENERATED ALWAYS AS IDENTITY (START 100 INCREMENT 5), kept text,
    CONSTRAINT readings_key PRIMARY KEY (id, at), CONSTRAINT no_x CHECK ("Value %" <> 'x'),
    CONSTRAINT one_number UNIQUE NULLS NOT DISTINCT (at, number)
) WITH (fillfactor = 70, autovacuum_enabled = false);
CREATE INDEX by_value ON readings ("Value %" DESC) WHERE kept IS NOT NULL;
CREATE INDEX by_brin ON readings USING brin (at);
CREATE STATISTICS together ON at, number FROM readings;
COMMENT ON TABLE readings IS 'it''s 100% ours';
COMMENT ON COLUMN readings.kept IS 'a column';
COMMENT ON INDEX by_value IS 'an index';
COMMENT ON CONSTRAINT readings_key ON readings IS 'a key';
COMMENT ON CONSTRAINT no_x ON readings IS 'a check';
GRANT SELECT, INSERT ON readings TO queuekeeper_stranger WITH GRANT OPTION;
GRANT UPDATE ("Value %", kept) ON readings TO PUBLIC;
ALTER TABLE readings ENABLE ROW LEVEL SECURITY;
CREATE POLICY mine ON readings AS RESTRICTIVE FOR UPDATE TO queuekeeper_stranger USING (id > 0) WITH CHECK (number > 0);
CREATE POLICY all_of_it ON readings USING (true);
CREATE FUNCTION upper_kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.kept := upper(NEW.kept); RETURN NEW; END';
CREATE TRIGGER shout BEFORE INSERT OR UPDATE ON readings FOR EACH ROW WHEN (NEW.kept IS NOT NULL) EXECUTE FUNCTION
upper_kept();
CREATE TRIGGER asleep BEFORE DELETE ON readings FOR EACH ROW EXECUTE FUNCTION upper_kept();
ALTER TABLE readings DISABLE TRIGGER asleep;
COMMENT ON TRIGGER shout ON readings IS 'a trigger';
INSERT INTO readings (at, kept) SELECT timestamptz '2026-11-21 12:00+00' - i * interval '1 hour', 'a' FROM
generate_series(1, 50) AS i;
"""

FACTS = {
    "columns": "SELECT attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attcollation, "
    "pg_get_expr(adbin, adrelid), col_description(attrelid, attnum), attacl FROM pg_attribute LEFT JOIN pg_attrdef ON "
    "adrelid = attrelid AND adnum = attnum WHERE attrelid = 'readings'::regclass AND attnum > 0",
    "constraints": "SELECT conname, pg_get_constraintdef(oid), obj_description(oid, 'pg_constraint') FROM "
    "pg_constraint WHERE conrelid = 'readings'::regclass AND contype <> 'n'",
    "indexes": "SELECT replace(indexdef, ' ONLY ', ' '), obj_description(format('%I.%I', schemaname, "
    "indexname)::regclass) FROM pg_indexes WHERE schemaname = 'public' AND tablename = 'readings'",
    "grants": "SELECT unnest(relacl)::text FROM pg_class WHERE oid = 'readings'::regclass",
    "comment": "SELECT obj_description('readings'::regclass), relrowsecurity FROM pg_class WHERE oid = "
    "'readings'::regclass",
    "policies": "SELECT policyname, permissive, roles, cmd, qual, with_check FROM pg_policies WHERE tablename = "
    "'readings' AND schemaname = 'public'",
    "triggers": "SELECT pg_get_triggerdef(oid), tgenabled, obj_description(oid) FROM pg_trigger WHERE tgrelid = "
    "'readings'::regclass AND NOT tgisinternal AND tgname NOT LIKE 'queuekeeper%'",
    "sequences": "SELECT pg_get_serial_sequence('readings', 'id')",
    "statistics": "SELECT stxkeys FROM pg_statistic_ext WHERE stxrelid = 'readings'::regclass",
}


def facts(connection: Connection) -> dict[str, list[str]]:
    return {name: sorted(map(repr, connection.execute(query.encode()))) for name, query in FACTS.items()}


def test_what_belongs_to_the_table_is_kept_there_and_back(connection: Connection, control_schema: None) -> None:
    with _stranger(connection):
        connection.execute(DECORATED.encode())
        before, content = facts(connection), rows(connection)
        carry_out(connection, asked(widen_keys=False))
        assert kind(connection) == "p"
        assert facts(connection) == before
        assert rows(connection) == content
        fresh = (
            "INSERT INTO readings (at, kept) VALUES (timestamptz '2026-11-21 12:00+00', 'b') RETURNING id, number, kept"
        )
        # Sequences go on, the trigger works, and so does the way back.
        assert connection.execute(fresh.encode()).fetchone() == (51, 350, "B")
        assert {"fillfactor=70", "autovacuum_enabled=false"} == {
            option
            for (options,) in connection.execute("SELECT reloptions FROM pg_class WHERE relname = 'readings_p20261121'")
            for option in options
        }
        carry_out(connection, asked(act=Act.BACK))
        assert facts(connection) == before
        assert (kind(connection), leftovers(connection)) == ("r", [])
        assert len(rows(connection)) == len(content) + 1
        assert connection.execute(fresh.encode()).fetchone() == (52, 355, "B")
        connection.execute("DROP TABLE readings; DROP FUNCTION upper_kept; DROP OWNED BY queuekeeper_stranger")


def test_odd_names_and_keys_of_several_columns(connection: Connection, control_schema: None) -> None:
    connection.execute(
        'CREATE SCHEMA "My %s"; CREATE TABLE "My %s"."Odd ""one""" ("A b" text COLLATE "C", "%c" uuid DEFAULT '
        'gen_random_uuid(), queuekeeper_row int, "Day" date, theirs float8, number int DEFAULT 1, noted int DEFAULT 2, '
        'PRIMARY KEY ("A b", "%c", "Day", number, noted));'
    )
    connection.execute(
        'INSERT INTO "My %s"."Odd ""one""" ("A b", "Day", theirs) SELECT E\'it\'\'s \\\\ \' || i % 3, '
        "date '2026-11-21' - i, random() FROM generate_series(0, 300) AS i"
    )
    name = '"My %s"."Odd ""one"""'
    content = sorted(map(repr, connection.execute(f"SELECT * FROM {name}".encode())))
    carry_out(connection, asked(name, key="Day", step="1 month", widen_keys=False, batch_rows=7))
    connection.execute(f'UPDATE {name} SET "A b" = "A b" || \'!\' WHERE "Day" > \'2026-11-01\''.encode())
    connection.execute(f'UPDATE {name} SET "A b" = trim(\'!\' FROM "A b")'.encode())
    carry_out(connection, asked(name, Act.BACK))
    assert sorted(map(repr, connection.execute(f"SELECT * FROM {name}".encode()))) == content


def test_settings_of_a_database_change_neither_the_comparison_nor_the_names(
    connection: Connection, connect: Callable[[], Connection], control_schema: None
) -> None:
    connection.execute(
        "CREATE TABLE readings (at timestamptz, share float8, value float8, PRIMARY KEY (share, at)); "
        "CREATE INDEX by_value ON readings (value) INCLUDE (at)"
    )
    # With the fewest digits that the setting allows, the text of each of them is that of a lower number.
    connection.execute(
        f"INSERT INTO readings SELECT {NOW}, i + 0.25 + i / 1e9, 1 + i / 1e9 FROM generate_series(1, 20) AS i".encode()
    )
    for setting in ("extra_float_digits = -15", "quote_all_identifiers = on"):
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {setting}".encode())
    own = connect()
    run_id = approved(own, connection, asked(widen_keys=False, batch_rows=3, max_run_minutes=1))
    engine(own).apply(MaintenanceRuns(connection), run_id, "public.readings")
    (serving,) = [name for name in leftovers(connection) if name.endswith("_old")]
    assert kind(connection) == "p"
    # A difference in the last digit is one.
    connection.execute(f"UPDATE {serving}.readings SET value = value + 1e-12 WHERE share < 2".encode())
    with pytest.raises(CheckFailed, match=r"1 row of public.readings and of the old table"):
        carry_out(own, asked(act=Act.BACK), records=connection)
    connection.execute(f"UPDATE {serving}.readings SET value = 1 + 1 / 1e9 WHERE share < 2".encode())
    carry_out(own, asked(act=Act.BACK), records=connection)
    assert (kind(connection), leftovers(connection)) == ("r", [])


def test_integer_keys_at_the_ends_of_their_type_are_adopted_or_refused_in_words(
    connection: Connection, control_schema: None
) -> None:
    connection.execute("CREATE DOMAIN small AS smallint; CREATE DOMAIN job_id AS small")
    connection.execute("CREATE TABLE jobs (id job_id PRIMARY KEY)")
    connection.execute("INSERT INTO jobs SELECT unnest(ARRAY[-32768, -32767, 0, 32766, 32767])")
    wish = asked("public.jobs", key="id", step="1000", ahead="200", widen_keys=False)
    with pytest.raises(RefusedError, match=r"^column id holds 32767 in some row, the highest value of its type"):
        planned(connection, wish)
    connection.execute("DELETE FROM jobs WHERE id = 32767")
    carry_out(connection, wish)
    assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (4,)


def test_a_table_is_adopted_by_an_integer_and_maintained_by_its_policy(
    connection: Connection, control_schema: None
) -> None:
    connection.execute("CREATE TABLE jobs (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, what text)")
    connection.execute("INSERT INTO jobs (what) SELECT 'x' FROM generate_series(1, 500)")
    carry_out(connection, asked("public.jobs", key="id", step="100", ahead="200", retention="300", widen_keys=False))
    policy = load_policy(connection, "public.jobs")
    assert coverage(connection, policy=policy, now_ms=NOW_MS).head_room_met
    # Nothing leaves while the way back is open.
    assert policy.retention is None
    carry_out(connection, asked("public.jobs", Act.COMMIT))
    policy = load_policy(connection, "public.jobs")
    assert policy.retention == "300"
    assert len(plan_retirement(connection, policy=policy, now_ms=NOW_MS).steps) == 2
    connection.execute("INSERT INTO jobs (what) SELECT 'y' FROM generate_series(1, 100)")
    assert leftovers(connection) == []
    with pytest.raises(RefusedError, match=r"no adoption of public.jobs is under way: there is nothing to commit"):
        planned(connection, asked("public.jobs", Act.COMMIT))


# --- while it is written to ---------------------------------------------------------------------------------------


@dataclass
class Writers:
    """Changes a table and its plain twin in the same transactions; both have to be the same in the end."""

    random: random.Random
    least: int
    most: int
    refused: list[psycopg.Error] = field(default_factory=list)

    def write(self, connection: Connection) -> None:
        """Make one change of any kind, or none where others hold the table."""
        chance, new, known = self.random.random(), self.random.randint(self.least, self.most), self._known()
        hours = self.random.randint(0, 190)
        at = f"{NOW} - interval '{hours} hours'"
        if chance < 0.4:
            change = f"INSERT INTO {{}} SELECT {new}, {at}, 'new' WHERE NOT EXISTS (SELECT FROM twin WHERE id = {new})"
        elif chance < 0.55:
            change = f"UPDATE {{}} SET value = value || '!' WHERE id = {known}"
        elif chance < 0.7:
            change = f"UPDATE {{}} SET at = {at} WHERE id = {known}"
        elif chance < 0.85:
            change = f"UPDATE {{}} SET id = {new} WHERE id = {known} AND NOT EXISTS (SELECT FROM twin WHERE id = {new})"
        else:
            change = f"DELETE FROM {{}} WHERE id = {known}"
        try:
            with connection.transaction():
                connection.execute(change.format("readings").encode())
                connection.execute(change.format("twin").encode())
        except psycopg.Error as error:
            self.refused.append(error)

    def _known(self) -> int:
        return self.random.randint(self.least, self.most)


def with_twin(connection: Connection) -> None:
    connection.execute(
        "CREATE TABLE twin (id bigint, at timestamptz, value text); INSERT INTO twin SELECT * FROM readings"
    )


def test_writers_change_rows_and_keys_all_along_and_no_change_is_lost(
    table: Connection, connect: Callable[[], Connection]
) -> None:
    with_twin(table)
    over = threading.Event()
    # Each changes rows of its own, so that none waits for another one.
    writers = [Writers(random.Random(at), at * 500 + 1, at * 500 + 500) for at in range(2)]

    def work(writer: Writers, own: Connection) -> None:
        while not over.is_set():
            writer.write(own)

    threads = [threading.Thread(target=work, args=(each, connect())) for each in writers]
    for each in threads:
        each.start()
    try:
        for turn in range(2):
            assert carry_out(table, asked(batch_rows=100 + turn)).clean
            assert kind(table) == "p"
            assert carry_out(table, asked(act=Act.BACK, batch_rows=100 + turn)).clean
            assert kind(table) == "r"
        outcome = carry_out(table, asked())
        assert outcome.counts.repeated > 0
        assert outcome.counts.compared >= 400
        assert carry_out(table, asked(act=Act.COMMIT)).clean
    finally:
        over.set()
        for each in threads:
            each.join()
    assert [error for writer in writers for error in writer.refused] == []
    assert kind(table) == "p"
    assert rows(table) == rows(table, "twin")
    assert [name for name in leftovers(table) if not name.startswith("readings_p")] == []


class Killed(BaseException):
    """The process is gone."""


class Disturbed:
    """A connection that lets a writer in before each statement, and is gone before one of them.

    :param at: which statement it does not come to; none for none.
    """

    def __init__(self, connection: Connection, writer: Callable[[], None], at: int | None) -> None:
        self.__dict__.update(inner=connection, writer=writer, left=at, sent=0)

    def execute(self, query: Any, values: Any = None) -> Any:
        self.__dict__["sent"] += 1
        self.__dict__["writer"]()
        if self.__dict__["sent"] == self.__dict__["left"]:
            self.inner.close()
            raise Killed
        return self.inner.execute(query, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["inner"], name, value)


KILLS = 18
BY_DAY = (3, 10)


@pytest.mark.parametrize("part", [*BY_DAY, *nightly(*({*range(KILLS)} - {*BY_DAY}))])
def test_a_crash_at_any_statement_leaves_a_table_that_serves_and_the_run_goes_on(
    table: Connection, connect: Callable[[], Connection], part: int
) -> None:
    """The statements are divided among the tests; each is killed at some of them, one after the other."""
    with_twin(table)
    own = connect()
    own.execute("SET lock_timeout = '20ms'")
    writer = Writers(random.Random(part), 1, 1_000)
    for turn, act in enumerate((Act.ADOPT, Act.BACK, Act.ADOPT, Act.COMMIT)):
        run_id, at, is_done = approved(table, table, asked(act=act, batch_rows=250 + turn)), 1 + part, False
        while not is_done:
            # The server may not have noticed yet that the last one is gone.
            with suppress(Killed, MaintenanceRunning):
                disturbed = Disturbed(connect(), lambda: writer.write(own), at)
                engine(disturbed).apply(MaintenanceRuns(table), run_id, "public.readings")
                is_done = True
            # Whatever serves now has every change, and takes more.
            assert rows(table) == rows(table, "twin")
            writer.write(own)
            # Each try comes further, until the last one ends.
            at += KILLS
        outcome = engine(table).report(MaintenanceRuns(table), run_id, dry_run=False)
        assert outcome.clean, act
    assert {type(each) for each in writer.refused} <= {psycopg.errors.LockNotAvailable}
    assert (kind(table), rows(table)) == ("p", rows(table, "twin"))
    assert [name for name in leftovers(table) if not name.startswith("readings_p")] == []


# --- comparison and exchange --------------------------------------------------------------------------------------


def stopped_before_the_exchange(table: Connection, connect: Callable[[], Connection]) -> str:
    """Copy everything, and return the run, which goes on to the exchange."""
    run_id = approved(table, table, asked())
    own = connect()

    class Stopping(Disturbed):
        def execute(self, query: Any, values: Any = None) -> Any:
            if b"LOCK TABLE" in (query if isinstance(query, bytes) else b""):
                raise Killed
            return self.inner.execute(query, values)

    with pytest.raises(Killed):
        engine(Stopping(own, lambda: None, None)).apply(MaintenanceRuns(table), run_id, "public.readings")
    own.close()
    return run_id


def go_on(table: Connection, run_id: str, say: Tell = lambda _: None) -> Any:
    return engine(table, say).apply(MaintenanceRuns(table), run_id, "public.readings")


def test_a_change_that_no_trigger_noted_is_found_before_the_exchange(
    table: Connection, connect: Callable[[], Connection]
) -> None:
    run_id = stopped_before_the_exchange(table, connect)
    table.execute("ALTER TABLE readings DISABLE TRIGGER ALL")
    table.execute("UPDATE readings SET value = 'unseen' WHERE id IN (3, 4); DELETE FROM readings WHERE id = 700")
    table.execute("ALTER TABLE readings ENABLE ALWAYS TRIGGER queuekeeper_adoption")
    with pytest.raises(CheckFailed, match=r"rows? of the copy of public.readings differ.*--act back"):
        go_on(table, run_id)
    assert kind(table) == "r"
    carry_out(table, asked(act=Act.BACK))
    assert leftovers(table) == []


def test_a_table_that_was_altered_meanwhile_is_not_exchanged(
    table: Connection, connect: Callable[[], Connection]
) -> None:
    run_id = stopped_before_the_exchange(table, connect)
    table.execute("ALTER TABLE readings ADD more int")
    with pytest.raises(StalePlan, match=r"public.readings was altered since the plan: end it by --act back"):
        go_on(table, run_id)
    assert kind(table) == "r"


@pytest.mark.parametrize(
    ("change", "undo", "words"),
    [
        ("CREATE VIEW recent AS SELECT * FROM readings", "DROP VIEW recent", "view recent refers to it"),
        (
            "CREATE TABLE more () INHERITS (readings)",
            "ALTER TABLE more NO INHERIT readings",
            "others inherit from it",
        ),
        ("CREATE PUBLICATION news FOR TABLE readings", "DROP PUBLICATION news", "publication news names it"),
        ("ALTER TABLE readings SET UNLOGGED", "ALTER TABLE readings SET LOGGED", "it is unlogged"),
    ],
)
def test_what_comes_to_refer_to_the_table_while_it_is_copied_keeps_it_in_use(
    table: Connection, connect: Callable[[], Connection], change: LiteralString, undo: LiteralString, words: str
) -> None:
    run_id = stopped_before_the_exchange(table, connect)
    table.execute(change)
    with pytest.raises(RefusedError, match=f"public.readings was not exchanged.*{words}"):
        go_on(table, run_id)
    assert kind(table) == "r"
    table.execute(undo)
    assert (go_on(table, run_id).done, kind(table)) == (True, "p")
    carry_out(table, asked(act=Act.COMMIT))


@pytest.mark.parametrize(
    ("change", "undo", "words"),
    [
        ("CREATE VIEW recent AS SELECT * FROM readings", "DROP VIEW recent", "view recent refers to it"),
        (
            "CREATE FUNCTION f(one readings) RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "DROP FUNCTION f",
            r"function f\(readings\) refers to it",
        ),
        ("CREATE INDEX late ON readings (value)", "DROP INDEX late", "it was altered.*CREATE INDEX late"),
        ("REVOKE SELECT ON readings FROM PUBLIC", "GRANT SELECT ON readings TO PUBLIC", "altered.*GRANT SELECT"),
        (
            (
                "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
                "CREATE TRIGGER late BEFORE INSERT ON readings FOR EACH ROW EXECUTE FUNCTION f()"
            ),
            "DROP TRIGGER late ON readings",
            "it was altered.*CREATE TRIGGER late",
        ),
    ],
)
def test_what_has_come_to_the_new_table_is_not_lost_on_the_way_back(
    table: Connection, change: LiteralString, undo: LiteralString, words: str
) -> None:
    table.execute("GRANT SELECT ON readings TO PUBLIC")
    carry_out(table, asked())
    table.execute(change)
    with pytest.raises(RefusedError, match=f"the way back of public.readings would lose.*{words}.*or commit"):
        planned(table, asked(act=Act.BACK))
    table.execute(undo)
    carry_out(table, asked(act=Act.BACK))
    assert (kind(table), leftovers(table)) == ("r", [])


@pytest.mark.parametrize(
    ("by_hand", "mend"),
    [
        ("TRUNCATE readings_p20261120", "DELETE FROM {} AS gone WHERE at >= '2026-11-20' AND at < '2026-11-21'"),
        (
            (
                "CREATE TABLE own (LIKE readings INCLUDING ALL); INSERT INTO own VALUES (9000, '2020-01-01', 'x'); "
                "ALTER TABLE readings ATTACH PARTITION own FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')"
            ),
            "INSERT INTO {} SELECT * FROM own",
        ),
        (
            "ALTER TABLE readings DETACH PARTITION readings_p20261120; DROP TABLE readings_p20261120",
            "DELETE FROM {} AS gone WHERE at >= '2026-11-20' AND at < '2026-11-21'",
        ),
    ],
)
def test_the_way_back_neither_loses_rows_that_no_trigger_noted_nor_brings_them_back(
    table: Connection, by_hand: LiteralString, mend: str
) -> None:
    carry_out(table, asked())
    table.execute(by_hand)
    content = rows(table)
    with pytest.raises(CheckFailed, match=r"rows? of public.readings and of the old table .* differ.*or commit"):
        carry_out(table, asked(act=Act.BACK))
    assert (kind(table), rows(table)) == ("p", content)
    (old,) = [name for name in leftovers(table) if name.endswith("_old")]
    table.execute(mend.format(f"{old}.readings").encode())
    carry_out(table, asked(act=Act.BACK))
    assert (kind(table), rows(table)) == ("r", content)


def test_a_commit_drops_nothing_of_others_that_refers_to_the_old_table(table: Connection) -> None:
    carry_out(table, asked())
    (old,) = [name for name in leftovers(table) if name.endswith("_old")]
    table.execute(f"CREATE VIEW before AS SELECT * FROM {old}.readings".encode())
    with pytest.raises(RefusedError, match=r"view before of others would go with the table that was set aside"):
        planned(table, asked(act=Act.COMMIT))
    table.execute("DROP VIEW before")
    carry_out(table, asked(act=Act.COMMIT))


def test_the_exchange_gives_way_to_whoever_holds_the_table_and_compares_again(
    table: Connection, connect: Callable[[], Connection]
) -> None:
    run_id = stopped_before_the_exchange(table, connect)
    holder, writer, said = connect(), connect(), list[str]()
    holder.execute("BEGIN; SELECT count(*) FROM readings")
    done = list[Any]()
    thread = threading.Thread(target=lambda: done.append(go_on(table, run_id, said.append)))
    thread.start()
    end_s = time.monotonic() + PATIENCE_S
    while sum("a lock was given back" in each for each in said) < 2 and time.monotonic() < end_s and thread.is_alive():
        writer.execute("INSERT INTO readings (at, value) VALUES ('2026-11-20', 'meanwhile')")
        # Who writes without a pause can be faster than the copy, which then meets its limit of disk.
        time.sleep(0.01)
    assert "pid" in next(each for each in said if "a lock was given back" in each)
    holder.execute("COMMIT")
    thread.join()
    assert (done[0].done, kind(table)) == (True, "p")


def test_an_exchange_that_takes_too_long_is_taken_back(
    table: Connection, connect: Callable[[], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = stopped_before_the_exchange(table, connect)
    monkeypatch.setattr("queuekeeper.maintenance.partitions.adoption.work._TRIES", 1)
    own, said = connect(), list[str]()

    class Slow(Disturbed):
        def execute(self, query: Any, values: Any = None) -> Any:
            if (
                b'ALTER TABLE "public"."readings" SET SCHEMA' in (query if isinstance(query, bytes) else b"")
                and not said
            ):
                return self.inner.execute("SELECT pg_sleep(60)")
            return self.inner.execute(query, values)

    engine(Slow(own, lambda: None, None), said.append).apply(MaintenanceRuns(table), run_id, "public.readings")
    assert "it would have taken too long" in said[0]
    assert kind(table) == "p"


def test_truncate_is_refused_until_the_commit(table: Connection) -> None:
    carry_out(table, asked())
    with pytest.raises(psycopg.errors.ObjectInUse, match=r"is being adopted: it cannot be truncated now"):
        table.execute("TRUNCATE readings")
    carry_out(table, asked(act=Act.COMMIT))
    table.execute("TRUNCATE readings")


def test_rows_that_the_old_table_cannot_hold_keep_the_new_one_in_use(table: Connection) -> None:
    carry_out(table, asked())
    table.execute("INSERT INTO readings (id, at, value) VALUES (1, '2026-11-20', 'twice')")
    with pytest.raises(CheckFailed, match=r"1 changed row of public.readings cannot be repeated on the other table"):
        carry_out(table, asked(act=Act.BACK))
    assert kind(table) == "p"
    table.execute("DELETE FROM readings WHERE value = 'twice'")
    content = rows(table)
    carry_out(table, asked(act=Act.BACK))
    assert (kind(table), rows(table)) == ("r", content)


def test_values_that_rows_exchange_among_themselves_are_repeated(
    table: Connection, connect: Callable[[], Connection]
) -> None:
    table.execute("ALTER TABLE readings ADD place int, ADD UNIQUE (place, at)")
    table.execute("UPDATE readings SET at = '2026-11-20', place = id")
    run_id = stopped_before_the_exchange(table, connect)
    # Every row takes the place of the next one, in an order in which none is free when its turn comes.
    table.execute("UPDATE readings SET place = -place; UPDATE readings SET place = -place % 700 + 1")
    go_on(table, run_id)
    assert kind(table) == "p"
    assert table.execute("SELECT count(*) FROM readings WHERE place = id % 700 + 1").fetchone() == (700,)


def test_a_row_beyond_all_partitions_gets_one(table: Connection, connect: Callable[[], Connection]) -> None:
    run_id = stopped_before_the_exchange(table, connect)
    table.execute("INSERT INTO readings (at, value) VALUES ('2026-12-24', 'late'), ('2026-10-01', 'early')")
    content = rows(table)
    go_on(table, run_id)
    assert (kind(table), rows(table)) == ("p", content)


def test_columns_that_differ_keep_the_new_table_in_use(table: Connection) -> None:
    carry_out(table, asked())
    table.execute("ALTER TABLE readings ADD more int")
    with pytest.raises(
        RefusedError, match=r"public.readings has other columns than the old table .more integer.*or commit"
    ):
        planned(table, asked(act=Act.BACK))
    carry_out(table, asked(act=Act.COMMIT))


def test_whoever_begins_again_is_told_what_is_under_way(table: Connection, connect: Callable[[], Connection]) -> None:
    with pytest.raises(RefusedError, match=r"no adoption of public.readings is under way: there is nothing to back"):
        planned(table, asked(act=Act.BACK))
    stopped_before_the_exchange(table, connect)
    with pytest.raises(RefusedError, match=r"an adoption of public.readings is under way.*--go-on RUN.*--act back"):
        planned(table, asked())
    with pytest.raises(RefusedError, match=r"is not exchanged yet, so there is nothing to commit"):
        planned(table, asked(act=Act.COMMIT))
    carry_out(table, asked(act=Act.BACK))
    carry_out(table, asked(batch_rows=99))
    with pytest.raises(RefusedError, match=r"was adopted, and nobody has committed it.*--act commit"):
        planned(table, asked())


# --- what makes it wait -------------------------------------------------------------------------------------------


def test_the_copy_waits_while_sessions_wait_for_locks(table: Connection, connect: Callable[[], Connection]) -> None:
    table.execute("CREATE TABLE other ()")
    run_id = approved(table, table, asked(max_waiting=0))
    holder, waiter, said = connect(), connect(), list[str]()
    holder.execute("BEGIN; LOCK TABLE other")
    waiting = threading.Thread(target=waiter.execute, args=("SELECT * FROM other",))
    waiting.start()
    working = threading.Thread(target=lambda: go_on(table, run_id, said.append))
    working.start()
    end_s = time.monotonic() + PATIENCE_S
    while not said and time.monotonic() < end_s:
        time.sleep(0.01)
    assert said == ["public.readings: the copy waits, since sessions wait for locks: 1"]
    holder.execute("COMMIT")
    waiting.join()
    working.join()
    assert kind(table) == "p"


def test_a_copy_that_outgrows_its_disk_stops_and_the_table_serves_on(
    table: Connection, connect: Callable[[], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuekeeper.maintenance.partitions.adoption.work._LOOK_S", 0.0)
    run_id = stopped_before_the_exchange(table, connect)
    table.execute("UPDATE queuekeeper.maintenance_runs SET parameters = parameters || '{\"disk_mib\": 1}'")
    table.execute(
        "INSERT INTO readings (at, value) SELECT '2026-11-20', (SELECT string_agg(md5(i::text || j), '') FROM "
        "generate_series(1, 30) AS j) FROM generate_series(1, 3000) AS i"
    )
    with pytest.raises(QueuekeeperError, match=r"--act back"):
        go_on(table, run_id)
    assert (kind(table), len(rows(table))) == ("r", 3_700)
