"""Archives in an Iceberg catalog: any engine reads them as one table, and a query reads what is hot and cold as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from queuekeeper import postgres, schema_migrations
from queuekeeper.cli.partitions import app
from queuekeeper.clock import DAY_MS, system_clock
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from queuekeeper.jobs.locks import session_lock
from queuekeeper.maintenance.partitions import query as query_module
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.archive import archive_partition
from queuekeeper.maintenance.partitions.iceberg import (
    RegisterReport,
    catalog_of,
    find_iceberg_table,
    register,
    rows_of_catalog,
)
from queuekeeper.maintenance.partitions.model import PartitionPlan, StepState
from queuekeeper.maintenance.partitions.plan import plan_creation, plan_drop, plan_reattachment, plan_retirement
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.query import QueryReport, query
from queuekeeper.maintenance.partitions.restore import restore_partition
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.postgres import Connection
from tests.addresses import url_of
from tests.conftest import nightly
from tests.postgres_roles import new_role

pytestmark = pytest.mark.usefixtures("compiling")

VISITS = "public.visits"
POLICY = PartitionPolicy(table=VISITS, step="1 month", ahead="1 month", retention="1 month", quarantine_days=0)


class Table:
    """A table with a partition for each of three months; each test retires what it needs."""

    policy = POLICY

    def __init__(self, connection: Connection, spark: SparkSession, archives: Path | str) -> None:
        self.connection, self.spark, self.archives = connection, spark, archives
        schema_migrations.migrate(connection)
        connection.execute("CREATE TABLE visits (at timestamptz NOT NULL, n int, doc jsonb) PARTITION BY RANGE (at)")
        for month in (1, 2, 3):
            connection.execute(
                f"CREATE TABLE visits_{month} PARTITION OF visits"
                f" FOR VALUES FROM ('2026-0{month}-01') TO ('2026-0{month + 1}-01')"
            )
        connection.execute(
            "INSERT INTO visits SELECT make_timestamptz(2026, m, 2, 0, 0, 0, 'UTC'), 100 * m + n, '{\"a\": 1}'"
            " FROM generate_series(1, 3) AS m, generate_series(1, 10) AS n"
        )
        connection.execute("CREATE TABLE visits_now PARTITION OF visits FOR VALUES FROM ('2026-04-01') TO (MAXVALUE)")
        connection.execute("INSERT INTO visits SELECT now(), n FROM generate_series(1, 5) AS n")
        save_policy(connection, POLICY)

    def apply(self, plan: PartitionPlan) -> None:
        report = apply_plan(self.connection, plan=plan, now_ms=system_clock())
        assert report.outcomes, plan
        assert [(outcome.state, outcome.words) for outcome in report.outcomes] == [
            (StepState.DONE, "") for _ in plan.steps
        ]

    def retire(self) -> None:
        self.apply(plan_retirement(self.connection, policy=self.policy, now_ms=system_clock()))

    def archive(self) -> None:
        for record in retired_partitions(self.connection, table=self.policy.table):
            if record.archived_at is None:
                archive_partition(
                    self.spark,
                    postgres_url=url_of(self.connection),
                    retired_id=record.retired_id,
                    directory=self.archives,
                    now_ms=system_clock(),
                )

    def register(
        self, *, now_ms: int | None = None, dry_run: bool = False, by: Connection | None = None
    ) -> RegisterReport:
        return register(
            by or self.connection,
            postgres_url=url_of(self.connection),
            table=self.policy.table,
            directory=self.archives,
            now_ms=now_ms or system_clock(),
            kept_snapshots_ms=DAY_MS,
            dry_run=dry_run,
        )

    def restore(self, retired_id: int) -> int:
        """Load a dropped partition from the catalog; return how many rows that are."""
        source = partial(
            rows_of_catalog, self.connection, postgres_url=url_of(self.connection), directory=self.archives
        )
        return restore_partition(
            self.connection, retired_id=retired_id, now_ms=system_clock(), source=source
        ).content.rows

    def query(self, text: str, lower: str | None = None, upper: str | None = None) -> QueryReport:
        return query(
            postgres_url=url_of(self.connection),
            table=self.policy.table,
            text=text,
            directory=self.archives,
            lower=lower,
            upper=upper,
        )


DISK, OBJECT_STORE = "a disk", "an object store"


@pytest.fixture(params=[DISK, *nightly(OBJECT_STORE)])
def table(
    request: pytest.FixtureRequest, clone: Callable[[str], str], spark: SparkSession, tmp_path: Path
) -> Iterator[Table]:
    archives: Path | str = tmp_path
    if request.param == OBJECT_STORE:
        archives = f"s3://{request.getfixturevalue('shared_bucket')}/archives"
    with postgres.connect(clone("template0"), autocommit=True) as connection:
        yield Table(connection, spark, archives)


@pytest.mark.parametrize("table", [DISK, OBJECT_STORE], indirect=True)
def test_archives_are_one_table_for_every_engine_and_a_query_reads_hot_and_cold_as_one(table: Table) -> None:
    table.retire()
    everything = "SELECT count(*), sum(n) FROM visits"
    assert table.query(everything).rows == ((35, 6_180),)
    table.archive()
    planned = table.register(dry_run=True)
    assert (planned.added, planned.rows, planned.metadata) == (("visits_1", "visits_2", "visits_3"), 30, "")
    done = table.register()
    assert (done.added, done.removed, done.files, done.rows) == (planned.added, (), planned.files, 30)
    assert table.register().added == ()
    table.apply(plan_drop(table.connection, policy=POLICY, now_ms=system_clock()))
    assert table.query(everything).rows == ((35, 6_180),)
    assert table.query("SELECT min(n), max(n) FROM public.visits", "2026-02-01", "2026-03-01").rows == ((201, 210),)

    with catalog_of(table.connection, postgres_url=url_of(table.connection), directory=table.archives) as catalog:
        assert catalog is not None
        iceberg = catalog.load_table(("public", "visits"))
        rows = iceberg.scan(row_filter="n > 305").to_arrow()
        assert sorted(rows["n"].to_pylist()) == [306, 307, 308, 309, 310]
        found = iceberg.scan().to_duckdb("visits")
        assert found.execute("SELECT count(*), sum(n), min(doc) FROM visits").fetchall() == [(30, 6_165, '{"a": 1}')]

        files = [task.file.file_path for task in iceberg.scan().plan_files()]
    if isinstance(table.archives, Path):
        of_spark = table.spark.read.parquet(*files)
        assert of_spark.selectExpr("count(*)", "sum(n)").first() == (30, 6_165)

    given = ["--postgres-url", url_of(table.connection), "--folder", str(table.archives), "--json"]
    shown = CliRunner().invoke(app, ["register", VISITS, "--dry-run", *given])
    assert json.loads(shown.stdout)["tables"][0]["rows"] == 30
    shown = CliRunner().invoke(app, ["query", VISITS, everything, "--to", "2026-02-01", *given])
    assert json.loads(shown.stdout)["rows"] == [[10, 1_055]]
    kinds = "visits.at, 1.50, 'nan'::float, '\\xAA'::blob, [1, NULL], {'day': visits.at::date}, INTERVAL 1 DAY"
    shown = CliRunner().invoke(
        app, ["query", VISITS, f"SELECT {kinds} FROM visits LIMIT 1", "--to", "2026-02-01", *given]
    )
    assert json.loads(shown.stdout)["rows"] == [
        ["2026-01-02T00:00:00+00:00", "1.50", "nan", "\\xaa", [1, None], {"day": "2026-01-02"}, "1 day, 0:00:00"]
    ]
    shown = CliRunner().invoke(app, ["query", VISITS, "SELECT m FROM visits", *given])
    assert isinstance(shown.exception, UsageError)
    assert '"public"."visits"' in str(shown.exception)
    with pytest.raises(UsageError, match=r"the query is refused: .*disabled"):
        table.query("SELECT * FROM read_csv('/etc/hostname')")


def test_rows_that_another_engine_has_written_anew_are_neither_registered_twice_nor_lost(table: Table) -> None:
    table.retire()
    table.archive()
    table.register()
    table.apply(plan_drop(table.connection, policy=POLICY, now_ms=system_clock()))
    with catalog_of(table.connection, postgres_url=url_of(table.connection), directory=table.archives) as catalog:
        assert catalog is not None
        iceberg = catalog.load_table(("public", "visits"))
        iceberg.overwrite(iceberg.scan().to_arrow())
    done = table.register()
    assert (done.added, done.removed, done.rows) == ((), (), 30)
    assert table.query("SELECT count(*), sum(n) FROM visits").rows == ((35, 6_180),)
    record = next(each for each in retired_partitions(table.connection) if each.partition_name == "visits_2")
    assert table.restore(record.retired_id) == 10
    table.apply(plan_reattachment(table.connection, policy=POLICY, retired_id=record.retired_id, now_ms=system_clock()))
    for act in (table.register, lambda: table.query("SELECT 1")):
        with pytest.raises(RefusedError, match=r"visits_2 of public\.visits is in its table again, and another engine"):
            act()


@pytest.mark.parametrize("table", [DISK], indirect=True)
def test_restore_whose_file_is_away_says_so_and_is_done_once_it_is_back(table: Table, tmp_path: Path) -> None:
    table.retire()
    table.archive()
    table.register()
    table.apply(plan_drop(table.connection, policy=POLICY, now_ms=system_clock()))
    record = next(each for each in retired_partitions(table.connection) if each.partition_name == "visits_2")
    assert record.archive is not None
    folder, elsewhere = Path(record.archive["path"]), tmp_path / "elsewhere"
    folder.rename(elsewhere)
    with pytest.raises(ServerUnavailable, match=r"a file that it names, cannot be reached: .*no archive was changed"):
        table.restore(record.retired_id)
    elsewhere.rename(folder)
    assert table.restore(record.retired_id) == 10


def test_rows_that_move_while_a_query_is_prepared_are_counted_once(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> None:
        table.retire()
        table.archive()
        table.register()

    moves: list[Callable[[], None]] = [
        leave,
        lambda: table.apply(plan_drop(table.connection, policy=POLICY, now_ms=system_clock())),
    ]

    def moved_after(*given: Any, **named: Any) -> Any:
        found = find_iceberg_table(*given, **named)
        moves.pop(0)()
        return found

    monkeypatch.setattr(query_module, "find_iceberg_table", moved_after)
    everything = "SELECT count(*), sum(n) FROM visits"
    assert table.query(everything).rows == ((35, 6_180),)
    answer = table.query(everything)
    assert (answer.rows, answer.hot_rows, answer.cold_rows) == (((35, 6_180),), 5, 30)


def test_rows_of_a_partition_whose_detach_was_interrupted_are_in_the_answer(table: Table) -> None:
    everything = "SELECT count(*), sum(n) FROM visits"
    detach = "ALTER TABLE visits DETACH PARTITION visits_2"
    with postgres.connect(url_of(table.connection)) as reader:
        reader.execute("SELECT FROM visits")
        table.connection.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            table.connection.execute(f"{detach} CONCURRENTLY")
        table.connection.execute("RESET lock_timeout")
    assert table.query(everything).rows == ((35, 6_180),)
    table.connection.execute(
        f"{detach} FINALIZE; ALTER TABLE visits ATTACH PARTITION visits_2 FOR VALUES "
        "FROM ('2026-02-01') TO ('2026-03-01')"
    )
    table.retire()
    # As when a session has ended after the detach, and before the partition came to the quarantine.
    table.connection.execute(
        "ALTER TABLE queuekeeper_retired.visits_2 SET SCHEMA public;"
        "UPDATE queuekeeper.retired_partitions SET state = 'detaching' WHERE partition_name = 'visits_2'"
    )
    assert table.query(everything).rows == ((35, 6_180),)
    table.connection.execute("DROP TABLE queuekeeper_retired.visits_1")
    with pytest.raises(RefusedError, match=r"visits_1.* is on record as retired, and is gone"):
        table.query(everything)


def test_rows_that_were_drained_from_a_default_partition_are_counted_where_they_went(table: Table) -> None:
    table.connection.execute(
        "DROP TABLE visits_now; CREATE TABLE visits_rest PARTITION OF visits DEFAULT;"
        "ALTER TABLE visits_rest ADD PRIMARY KEY (at, n);"
        "INSERT INTO visits SELECT now(), n FROM generate_series(1, 5) AS n"
    )
    table.apply(plan_creation(table.connection, policy=POLICY, now_ms=system_clock()))
    (drained,) = [each for each in retired_partitions(table.connection) if each.drained_default]
    assert table.query("SELECT count(*), sum(n) FROM visits").rows == ((35, 6_180),)
    # As an archive of it was made by hand.
    table.archive()
    assert drained.partition_name not in table.register().added
    assert table.query("SELECT count(*), sum(n) FROM visits").rows == ((35, 6_180),)


def test_role_that_may_make_no_schema_registers_once_the_catalog_is_there(table: Table) -> None:
    table.retire()
    table.archive()
    with new_role(table.connection, "registrar") as role, postgres.connect(url_of(table.connection)) as registrar:
        table.connection.execute(f"GRANT pg_read_all_data, pg_write_all_data TO {role}")
        registrar.execute(f"SET ROLE {role}")
        registrar.commit()
        with pytest.raises(RefusedError, match="permission denied for database"):
            table.register(by=registrar)
        registrar.rollback()
        table.register()
        assert table.register(by=registrar).rows == 30


def test_what_cannot_be_one_table_is_refused_and_nothing_is_registered_of_it(table: Table) -> None:
    table.retire()
    table.archive()
    table.register()
    table.connection.execute(
        "ALTER TABLE visits ALTER COLUMN n TYPE text;"
        "CREATE TABLE visits_0 PARTITION OF visits FOR VALUES FROM ('2025-12-01') TO ('2026-01-01');"
        "INSERT INTO visits (at, n) VALUES ('2025-12-24', 'many')"
    )
    table.retire()
    table.archive()
    with pytest.raises(RefusedError, match=r"the archive of visits_0 has a column of another type than public.visits"):
        table.register()
    assert table.register(dry_run=True).rows == 31
    with session_lock(table.connection, f"queuekeeper.register {VISITS}") as is_held:
        assert is_held
        with pytest.raises(RefusedError, match=r"another process registers archives of public\.visits"):
            table.register()
    with catalog_of(table.connection, postgres_url=url_of(table.connection), directory=table.archives) as catalog:
        assert catalog is not None
        iceberg = catalog.load_table(("public", "visits"))
        assert sum(task.file.record_count for task in iceberg.scan().plan_files()) == 30
        with iceberg.transaction() as transaction:
            transaction.set_properties({"queuekeeper.source": "another/one"})
    with pytest.raises(RefusedError, match=r"the catalog has a table public\.visits of another/one"):
        table.register()


def test_schema_follows_the_table_and_what_returns_leaves_the_catalog(table: Table) -> None:
    table.connection.execute("ALTER TABLE visits ADD COLUMN late text")
    table.retire()
    table.archive()
    table.register()
    table.apply(plan_drop(table.connection, policy=POLICY, now_ms=system_clock()))
    table.connection.execute("ALTER TABLE visits ALTER COLUMN n TYPE bigint, DROP COLUMN doc, ADD COLUMN more int")
    table.connection.execute(
        "CREATE TABLE visits_0 PARTITION OF visits FOR VALUES FROM ('2025-12-01') TO ('2026-01-01');"
        "INSERT INTO visits (at, n, more) VALUES ('2025-12-24', 5000000000, 7)"
    )
    table.retire()
    table.archive()
    assert table.register().added == ("visits_0",)
    answer = table.query("SELECT n, more, doc FROM visits ORDER BY n DESC LIMIT 2")
    assert answer.rows == ((5_000_000_000, 7, None), (310, None, '{"a": 1}'))
    assert answer.columns == ("n", "more", "doc")

    record = next(each for each in retired_partitions(table.connection) if each.partition_name == "visits_2")
    with pytest.raises(RefusedError, match=r"public\.visits lacks doc, which the archive in catalog queuekeeper"):
        table.restore(record.retired_id)
    table.connection.execute("ALTER TABLE visits ADD COLUMN doc jsonb")
    assert table.restore(record.retired_id) == 10
    table.apply(plan_reattachment(table.connection, policy=POLICY, retired_id=record.retired_id, now_ms=system_clock()))
    with pytest.raises(
        RefusedError, match=r"does not name .*visits_2.*`queuekeeper partitions register public.visits`"
    ):
        table.query("SELECT 1")
    assert table.register().removed == ("visits_2",)
    assert table.query("SELECT count(*), sum(n) FROM visits").rows == ((36, 5_000_006_180),)
    later = table.register(now_ms=system_clock() + 2 * DAY_MS)
    assert later.expired_snapshots > 0
    assert table.query("SELECT count(*) FROM visits").rows == ((36,),)


def test_rows_of_a_restored_partition_are_counted_once_until_it_is_back_in_its_table(table: Table) -> None:
    def counted() -> tuple[Any, ...]:
        return table.query("SELECT count(*), sum(n) FROM visits").rows

    everything = ((35, 6180),)
    table.retire()
    table.archive()
    table.register()
    table.apply(plan_drop(table.connection, policy=POLICY, now_ms=system_clock()))
    for _ in range(2):
        restore_partition(table.connection, retired_id=1, now_ms=system_clock())
        assert counted() == everything
        table.archive()
        with pytest.raises(RefusedError, match=r"does not name .*visits_1.*`queuekeeper partitions register"):
            counted()
        again = table.register()
        assert (again.added, again.removed, again.rows) == (("visits_1",), ("visits_1",), 30)
        assert counted() == everything
        table.apply(plan_drop(table.connection, policy=POLICY, now_ms=system_clock()))
        assert counted() == everything
    restore_partition(table.connection, retired_id=1, now_ms=system_clock())
    table.archive()
    table.apply(plan_reattachment(table.connection, policy=POLICY, retired_id=1, now_ms=system_clock()))
    assert table.register().removed == ("visits_1",)
    assert counted() == everything


def test_keys_that_archives_hold_as_text_are_read_by_their_order_whatever_the_table_is_called(table: Table) -> None:
    table.policy = replace(POLICY, table="public.cold")
    table.connection.execute(
        "CREATE TABLE cold (at timestamptz NOT NULL, n int) PARTITION BY RANGE (at);"
        "CREATE TABLE cold_0 PARTITION OF cold FOR VALUES FROM (MINVALUE) TO ('2026-02-01');"
        "CREATE TABLE cold_now PARTITION OF cold FOR VALUES FROM ('2026-04-01') TO (MAXVALUE);"
        "INSERT INTO cold VALUES ('-infinity', 1), ('0044-03-15 BC', 2), ('1800-01-01', 3), ('2026-01-01 05:00+00', 4),"
        " ('2026-01-02', 5), (now(), 6), ('infinity', 7)"
    )
    save_policy(table.connection, table.policy)
    table.retire()
    table.archive()
    table.register()
    table.apply(plan_drop(table.connection, policy=table.policy, now_ms=system_clock()))

    def numbers(lower: str | None = None, upper: str | None = None) -> list[int]:
        return [n for (n,) in table.query("SELECT n FROM cold ORDER BY n", lower, upper).rows]

    assert numbers() == numbers("-infinity") == [1, 2, 3, 4, 5, 6, 7]
    assert numbers("2026-01-01") == [4, 5, 6, 7]
    assert numbers("0100-01-01 BC", "2026-01-02 00:00+00") == [2, 3, 4]
    assert numbers("infinity") == [7]
    found = table.query("SELECT count(*) FROM public.cold")
    assert (found.rows, found.hot_rows, found.cold_rows) == (((7,),), 2, 5)
    (record,) = retired_partitions(table.connection, table="public.cold")
    assert table.restore(record.retired_id) == 5


def test_query_that_cannot_be_answered_is_refused_in_words(table: Table) -> None:
    for lower in ("yesterday noon", "2026-02-30", "99999999999"):
        with pytest.raises(UsageError, match=rf"^'{lower}' is no key of column at: "):
            table.query("SELECT 1", lower)
    for text in ("", " -- all of it"):
        with pytest.raises(UsageError, match=r"^the query is refused: it is empty"):
            table.query(text)
    table.connection.execute('ALTER TABLE visits ADD COLUMN "N" int')
    with pytest.raises(RefusedError, match=r"^columns n and N have the same name in the SQL of DuckDB"):
        table.query("SELECT sum(n) FROM visits")
