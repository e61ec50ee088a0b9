"""A retired partition as Parquet: every value, whatever its type; what is refused; and the way back into a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from queuekeeper import postgres, schema_migrations
from queuekeeper.cli.partitions import app
from queuekeeper.clock import system_clock
from queuekeeper.errors import CheckFailed, RefusedError
from queuekeeper.maintenance.partitions import archive
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.archive import ArchiveReport, archive_partition, archive_table
from queuekeeper.maintenance.partitions.manifest import (
    ROWS,
    ArchivedFile,
    archive_place,
    check_archive,
    read_manifest,
    sum_file,
)
from queuekeeper.maintenance.partitions.model import PartitionPlan, StepState
from queuekeeper.maintenance.partitions.plan import plan_drop, plan_reattachment, plan_retirement
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.restore import archive_folder, load_archive, restore_partition, retired_name
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.places import names
from queuekeeper.postgres import Connection
from tests.addresses import url_of
from tests.conftest import nightly
from tests.object_store import ObjectStore

pytestmark = pytest.mark.usefixtures("compiling")

PARENT = '''"odd.schema"."events ""%"""'''
TABLE = '''"odd.schema"."Old [1] {x}/é %"'''
BOUNDS = "FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')"

FORM = f"""
CREATE SCHEMA "odd.schema";
CREATE TYPE mood AS ENUM ('fine', 'it''s "bad"');
CREATE DOMAIN event_id AS varchar(24);
CREATE DOMAIN short_id AS event_id CHECK (length(value) < 10);
CREATE TABLE {PARENT} (
    at timestamptz NOT NULL,
    id bigint,
    "Id" int,
    "a.b `c" text DEFAULT 'x',
    small smallint, flag boolean, ratio real, exact double precision, amount numeric,
    raw bytea, doc jsonb, old_doc json, tags text[], spans int4range, day date, far date,
    plain timestamp, late timestamptz, clock time, span interval, key uuid, name event_id, short short_id, state mood,
    padded char(8), address inet,
    transaction_id xid8, point point, doubled bigint GENERATED ALWAYS AS ("Id"::bigint * 2) STORED
) PARTITION BY RANGE (at);
CREATE TABLE {TABLE} (LIKE {PARENT} INCLUDING ALL);
"""
ROWS_OF_ALL_KINDS = f"""
INSERT INTO {TABLE} (at, "Id", "a.b `c", small, flag, ratio, exact, amount, raw, doc, old_doc, tags, spans, day, far,
    plain, late, clock, span, key, name, short, state, padded, address, transaction_id, point)
VALUES
    ('2026-01-01 00:00:00.000001+00', 1, '', 1, true, 0.1, 'NaN', 'NaN', '\\x', '{{"a": [1.0, null]}}',
     '{{"b": 1,  "b": 2}}',
     '{{"a,b", NULL, "\\"" }}', '[1,5)', '2026-01-31', 'infinity', '1999-12-31 23:59:59.999999', 'infinity', '24:00',
     '1 month -3 days 00:00:00.5', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'pm1', 's', 'it''s "bad"', 'ab', '::1/64',
     '18446744073709551615', '(0.1,-0)'),
    ('2026-01-31 23:59:59.999999+00', NULL, E'line\\none,"two"\\r\\n\\\\. \\\\N é \\U0001F600', -1,
     NULL, '-Infinity', 1e-310,
     12345678901234567890.123456789000, '\\x00ff5c', 'null', 'null', '{{}}', NULL, '1900-01-01', '0044-03-15 BC',
     '1900-01-01', '-infinity', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO {TABLE} (at, "Id", raw)
SELECT '2026-01-02'::timestamptz + n * interval '1 second', n %% 7, sha256(n::text::bytea)
FROM generate_series(1, 5000) AS n;
INSERT INTO {TABLE} (at, "a.b `c") SELECT '2026-01-03', NULL FROM generate_series(1, 2);
""".replace("%%", "%")


@pytest.fixture
def connection(clone: Callable[[str], str]) -> Iterator[Connection]:
    with postgres.connect(clone("template0"), autocommit=True) as connected:
        connected.execute(FORM)
        yield connected


@pytest.fixture(params=["a disk", "an object store", *nightly("a file URL")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """A folder of archives, by each of the names that it may have."""
    if request.param == "an object store":
        return f"s3://{request.getfixturevalue('shared_bucket')}/archives"
    return tmp_path if request.param == "a disk" else f"file://{tmp_path}"


def archived(spark: SparkSession, connection: Connection, directory: Path | str, table: str = TABLE) -> ArchiveReport:
    return archive_table(
        spark,
        postgres_url=url_of(connection),
        table=table,
        parent=PARENT,
        key="at",
        bounds=BOUNDS,
        directory=directory,
        now_ms=1_780_000_000_000,
    )


def test_every_value_of_every_type_comes_back(spark: SparkSession, connection: Connection, place: Path | str) -> None:
    connection.execute(ROWS_OF_ALL_KINDS)
    report = archived(spark, connection, place)
    assert report.manifest.content.rows == 5_004
    assert report.path.startswith(str(place).removeprefix("file://"))
    path = archive_place(report.path)
    assert check_archive(connection, table=TABLE, path=path) == report.manifest

    connection.execute(f"CREATE TABLE back (LIKE {PARENT} INCLUDING ALL)")
    restored = load_archive(connection, path=path, table="public.back")
    assert (restored.is_new, restored.content) == (True, report.manifest.content)
    assert not load_archive(connection, path=path, table="public.back").is_new
    rows = "SELECT t::text FROM {} AS t ORDER BY 1"
    assert connection.execute(rows.format("back")).fetchall() == connection.execute(rows.format(TABLE)).fetchall()


def test_archive_that_the_writer_of_before_has_made_is_compared_and_loaded(
    spark: SparkSession, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_spark(rows: DataFrame, place: Any) -> tuple[ArchivedFile, ...]:
        folder = place.path / ROWS
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        rows.write.mode("overwrite").option("compression", "zstd").parquet(f"file://{folder}")
        return tuple(
            ArchivedFile(name=path.name, rows=pq.read_metadata(path).num_rows, size_bytes=size_bytes, sha256=sha256)
            for path in sorted(folder.glob("*.parquet"))
            for size_bytes, sha256 in [sum_file(path)]
        )

    connection.execute(ROWS_OF_ALL_KINDS)
    with monkeypatch.context() as patch:
        patch.setattr(archive, "_write_rows", by_spark)
        made = archived(spark, connection, tmp_path)
    again = archived(spark, connection, tmp_path)
    assert (made.is_new, again.is_new) == (True, False)
    assert again.manifest == made.manifest
    connection.execute(f"CREATE TABLE back (LIKE {PARENT} INCLUDING ALL)")
    assert (
        load_archive(connection, path=archive_place(again.path), table="public.back").content == again.manifest.content
    )


def test_archive_that_is_there_is_compared_and_stays_as_it_is(
    spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    connection.execute(ROWS_OF_ALL_KINDS)
    first = archived(spark, connection, tmp_path)
    before = {file: file.stat().st_mtime_ns for file in Path(first.path).rglob("*")}
    second = archived(spark, connection, tmp_path)
    assert (first.is_new, second.is_new) == (True, False)
    assert second.manifest == first.manifest
    assert {file: file.stat().st_mtime_ns for file in Path(first.path).rglob("*")} == before

    (file, *_) = sorted((Path(first.path) / ROWS).glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-5] + b"12345")
    with pytest.raises(CheckFailed, match=f"{file.name} differs from the manifest"):
        archived(spark, connection, tmp_path)
    with pytest.raises(CheckFailed, match=f"{file.name} differs from the manifest"):
        check_archive(connection, table=TABLE, path=Path(first.path))
    file.unlink()
    with pytest.raises(CheckFailed, match=f"{file.name} of the archive cannot be read"):
        load_archive(connection, path=Path(first.path), table=TABLE)


def test_rows_that_differ_have_an_archive_of_their_own(
    spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    connection.execute(f"INSERT INTO {TABLE} (at, small) SELECT '2026-01-02', n FROM generate_series(1, 3) AS n")
    first = archived(spark, connection, tmp_path)
    connection.execute(f"UPDATE {TABLE} SET small = 4 WHERE small = 3")
    with pytest.raises(CheckFailed, match=r"as it is now \(3 rows, hash \w+\) is not what is archived in"):
        check_archive(connection, table=TABLE, path=Path(first.path))
    second = archived(spark, connection, tmp_path)
    assert second.is_new
    assert second.path != first.path
    assert read_manifest(Path(first.path)) == first.manifest


def test_rows_that_are_written_meanwhile_leave_no_archive(
    spark: SparkSession, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(f"INSERT INTO {TABLE} (at) VALUES ('2026-01-02')")
    write = archive._write

    def write_meanwhile(*given: Any) -> Any:
        files = write(*given)
        connection.execute(f"UPDATE {TABLE} SET small = 5")
        return files

    monkeypatch.setattr(archive, "_write", write_meanwhile)
    with pytest.raises(CheckFailed, match="must not be dropped: it has changed while it was archived"):
        archived(spark, connection, tmp_path)
    assert list(tmp_path.rglob("manifest.json")) == []


def test_archive_that_was_killed_before_its_manifest_is_none_and_is_made_by_the_next_one(
    spark: SparkSession, connection: Connection, place: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(f"INSERT INTO {TABLE} (at, small) SELECT '2026-01-02', n FROM generate_series(1, 30) AS n")
    killed_at: list[Path] = []

    def killed(path: Path, _: Any) -> None:
        killed_at.append(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(archive, "write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            archived(spark, connection, place)
    (path,) = killed_at
    before = names(path / ROWS, what="archives")
    assert names(path, what="archives") == [ROWS]
    with pytest.raises(RefusedError, match="there is no archive in"):
        check_archive(connection, table=TABLE, path=path)

    report = archived(spark, connection, place)
    assert (report.is_new, archive_place(report.path)) == (True, path)
    after = names(path / ROWS, what="archives")
    assert not {name for name in before if name.startswith("part-")} & set(after)
    assert [each.name for each in report.manifest.files] == [name for name in after if name.endswith(".parquet")]
    assert sum(each.rows for each in report.manifest.files) == 30
    assert check_archive(connection, table=TABLE, path=path) == report.manifest
    # It is the only one, and what was tried before the work has left nothing.
    assert names(path.parent, what="archives") == [path.name]
    assert not archived(spark, connection, place).is_new


def test_place_that_cannot_be_written_is_refused_before_the_table_is_read(
    spark: SparkSession,
    connection: Connection,
    object_store: ObjectStore,
    shared_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(words: str, *, bucket: str = shared_bucket) -> None:
        with pytest.raises(RefusedError, match=words):
            archived(spark, connection, f"s3://{bucket}/archives")

    monkeypatch.setattr(archive, "describe_table", lambda *_: pytest.fail("the table was read"))
    advice = "; let this user write there, or name another folder$"
    with object_store.answering(403, "AccessDenied"):
        refused(rf"^the archive cannot be written to s3://.*: AccessDenied{advice}")
    with object_store.answering(403, "AccessDenied", after=1):
        refused(r"^Parquet cannot be written to s3://.*: AccessDenied; let Spark's tasks write there$")
    with object_store.answering(403, "AccessDenied", method="POST"):
        refused(rf"^the archive cannot be written to s3://.*: AccessDenied{advice}")
    refused(rf"^the archive cannot be written to s3://.*: there is no such bucket{advice}", bucket="no-such-bucket")
    with monkeypatch.context() as patched:
        patched.setattr(archive, "names", lambda *_, **__: [])
        refused(r"^what tasks of Spark write to s3://.* is not found there by this process: give all of them the same")
    monkeypatch.setitem(spark.sparkContext.environment, "AWS_SECRET_ACCESS_KEY", "wrong")
    refused(r"^Parquet cannot be written to s3://.*: The request signature .*; let Spark's tasks write there$")


def test_empty_partition_is_archived_too(spark: SparkSession, connection: Connection, tmp_path: Path) -> None:
    report = archived(spark, connection, tmp_path)
    content = report.manifest.content
    assert (content.rows, content.key_first, content.key_last) == (0, None, None)
    assert load_archive(connection, path=Path(report.path), table=TABLE).content.rows == 0


def test_manifest_says_what_the_table_was(spark: SparkSession, connection: Connection, tmp_path: Path) -> None:
    connection.execute(ROWS_OF_ALL_KINDS)
    connection.execute(f"ALTER TABLE {TABLE} ADD CONSTRAINT small_enough CHECK (small < 100)")
    connection.execute(f'CREATE INDEX by_id ON {TABLE} ("Id") WHERE flag')
    manifest = archived(spark, connection, tmp_path).manifest
    assert (manifest.parent, manifest.table, manifest.key, manifest.bounds) == (PARENT, TABLE, "at", BOUNDS)
    assert manifest.content.key_first == "2026-01-01 00:00:00.000001+00"
    assert manifest.content.key_last == "2026-01-31 23:59:59.999999+00"
    types = {column.name: (column.type_name, column.parquet_type) for column in manifest.columns}
    assert types["at"] == ("timestamp with time zone", "timestamp")
    assert types["late"] == ("timestamp with time zone", "string")
    assert types["short"] == ("short_id", "string")
    assert types["raw"] == ("bytea", "binary")
    # What people read is SQL that makes the table.
    connection.execute(f'ALTER TABLE {TABLE} RENAME TO other; DROP INDEX "odd.schema".by_id')
    for definition in manifest.ddl:
        connection.execute(definition)
    indexes = connection.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'by_id'").fetchall()
    assert len(indexes) == 1


def test_times_are_times_for_others_too(spark: SparkSession, connection: Connection, tmp_path: Path) -> None:
    connection.execute(
        f"INSERT INTO {TABLE} (at, day, plain) VALUES ('2026-01-02 03:04:05.6+07', '2026-01-02', '1950-01-01')"
    )
    report = archived(spark, connection, tmp_path)
    table = pq.read_table(Path(report.path) / ROWS)
    assert [str(table.schema.field(name).type) for name in ("at", "day", "plain")] == [
        "timestamp[us, tz=UTC]",
        "date32[day]",
        "timestamp[us]",
    ]
    assert table.column("at").to_pylist()[0].isoformat() == "2026-01-01T20:04:05.600000+00:00"


def test_what_cannot_be_archived_is_refused_in_words(
    spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match="is not an ordinary table: partitions are archived one by one"):
        archived(spark, connection, tmp_path, table=PARENT)
    connection.execute(f"ALTER TABLE {PARENT} ATTACH PARTITION {TABLE} {BOUNDS}")
    with pytest.raises(RefusedError, match="is still attached: only a retired partition is archived; retire it first"):
        archived(spark, connection, tmp_path)
    connection.execute(f"ALTER TABLE {PARENT} DETACH PARTITION {TABLE}")
    with (
        archive._only_archiver(url_of(connection), TABLE),
        pytest.raises(RefusedError, match="another process archives"),
    ):
        archived(spark, connection, tmp_path)
    # Whoever has ended is in nobody's way.
    for _ in range(30):
        with archive._only_archiver(url_of(connection), TABLE):
            pass
    (tmp_path / "file").touch()
    with pytest.raises(RefusedError, match=r"the archive cannot be written to .*: Not a directory"):
        archived(spark, connection, tmp_path / "file")


def test_restore_refuses_what_would_not_be_the_same(
    spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    connection.execute(f"INSERT INTO {TABLE} (at, small, doc) VALUES ('2026-01-02', 7, '{{}}')")
    path = Path(archived(spark, connection, tmp_path).path)
    connection.execute(f"INSERT INTO {TABLE} (at) VALUES ('2026-01-02')")
    with pytest.raises(RefusedError, match="has other rows already: an archive is loaded into an empty table"):
        load_archive(connection, path=path, table=TABLE)
    connection.execute(f"CREATE TABLE back (LIKE {PARENT} INCLUDING ALL); ALTER TABLE back DROP COLUMN doc")
    with pytest.raises(RefusedError, match=r"public.back lacks doc, which the archive in .* holds"):
        load_archive(connection, path=path, table="public.back")
    connection.execute("ALTER TABLE back ADD COLUMN doc int")
    with pytest.raises(RefusedError, match=r"does not take what the archive in .* holds: invalid input syntax"):
        load_archive(connection, path=path, table="public.back")
    connection.execute("ALTER TABLE back DROP COLUMN doc, ADD COLUMN doc json, ADD COLUMN more int DEFAULT 9")
    assert load_archive(connection, path=path, table="public.back").content.rows == 1
    assert connection.execute("SELECT small, more FROM back").fetchall() == [(7, 9)]
    connection.execute("TRUNCATE back")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["content"]["rows_hash"] = "0" * 32
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckFailed, match=r"would not hold what was archived: 1 row, hash .*; nothing was loaded"):
        load_archive(connection, path=path, table="public.back")
    assert connection.execute("SELECT count(*) FROM back").fetchone() == (0,)
    (path / "manifest.json").write_text('{"format": 2}')
    with pytest.raises(RefusedError, match="has format 2, and this release knows 1"):
        load_archive(connection, path=path, table="public.back")


def test_partition_comes_back_from_its_archive_after_it_was_dropped(
    spark: SparkSession, clone: Callable[[str], str], tmp_path: Path
) -> None:
    now_ms = system_clock()
    with postgres.connect(clone("template0"), autocommit=True) as connection:
        schema_migrations.migrate(connection)
        connection.execute("CREATE TABLE visits (at timestamptz NOT NULL, n int) PARTITION BY RANGE (at)")
        connection.execute(f"CREATE TABLE visits_old PARTITION OF visits {BOUNDS}")
        connection.execute("INSERT INTO visits SELECT '2026-01-02', n FROM generate_series(1, 1000) AS n")
        policy = PartitionPolicy(
            table="public.visits", step="1 month", ahead="1 month", retention="1 month", quarantine_days=0
        )
        save_policy(connection, policy)

        def apply(plan: PartitionPlan) -> None:
            report = apply_plan(connection, plan=plan, now_ms=now_ms)
            assert [(outcome.state, outcome.words) for outcome in report.outcomes] == [(StepState.DONE, "")]

        apply(plan_retirement(connection, policy=policy, now_ms=now_ms))
        (record,) = retired_partitions(connection)
        assert plan_drop(connection, policy=policy, now_ms=now_ms).empty
        with pytest.raises(RefusedError, match=r"retired partition 1 \(visits_old of public.visits\) has no archive"):
            restore_partition(connection, retired_id=record.retired_id, now_ms=now_ms)
        report = archive_partition(
            spark, postgres_url=url_of(connection), retired_id=record.retired_id, directory=tmp_path, now_ms=now_ms
        )
        (record,) = retired_partitions(connection)
        assert archive_folder(record) == Path(report.path)
        check_archive(connection, table=retired_name(connection, record), path=archive_folder(record))
        assert report.manifest.bounds == "FOR VALUES FROM ('2026-01-01 00:00:00+00') TO ('2026-02-01 00:00:00+00')"
        later_ms = system_clock()
        apply(plan_drop(connection, policy=policy, now_ms=later_ms))
        assert connection.execute("SELECT to_regclass('queuekeeper_retired.visits_old')").fetchone() == (None,)

        shown = CliRunner().invoke(
            app, ["restore", str(record.retired_id), "--postgres-url", url_of(connection), "--json"]
        )
        restored = json.loads(shown.stdout)
        assert (restored["is_new"], restored["content"]) == (True, asdict(report.manifest.content))
        apply(plan_reattachment(connection, policy=policy, retired_id=record.retired_id, now_ms=later_ms))
        assert connection.execute("SELECT count(*), sum(n) FROM visits_old").fetchone() == (1_000, 500_500)
        assert connection.execute("SELECT count(*) FROM visits").fetchone() == (1_000,)
