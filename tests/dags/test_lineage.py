"""OpenLineage is told which tables a copy and an archive read, what they write and how many rows, and no secret."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from openlineage.client.serde import Serde

from queuekeeper import postgres, schema_migrations
from queuekeeper.airflow.lineage import parquet_files, postgres_table
from queuekeeper.airflow.operators.migration import CopySessionsOperator
from queuekeeper.airflow.operators.partitions import ArchivePartitionsOperator
from queuekeeper.airflow.operators.spark import QueuekeeperSparkOperator
from queuekeeper.errors import UsageError
from queuekeeper.java import java_home
from queuekeeper.maintenance.partitions.wishes import ArchiveWish
from queuekeeper.migration.ledger.ledger import MigrationLedger
from tests.dags.test_approval import make_plan

pytestmark = pytest.mark.dags

ARCHIVE = {
    "partition": "queuekeeper_retired.messages_p1",
    "path": "/archives/messages_p1",
    "rows": 7,
    "size_bytes": 900,
    "files": 2,
}


@pytest.fixture
def plan_id(postgres_url: str, connections: Callable[..., None]) -> str:
    """A plan with a key prefix, and the connections of the tasks."""
    connections(
        queuekeeper_postgres=postgres_url,
        queuekeeper_redis="rediss://u:geheim@redis.example:6380/2?ssl=true",
        queuekeeper_spark="spark://local%5B1%5D?deploy-mode=client",
    )
    made = make_plan()
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        plan = replace(made, parameters=replace(made.parameters, key_prefix="tbmq:"))
        return MigrationLedger(connection).save_plan(plan, run_id="run-1").plan_id


@pytest.fixture
def run(server_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., QueuekeeperSparkOperator]:
    """Carry an operator out with an application that only reports; ``spark-submit`` is real."""
    java = java_home(server_home)
    monkeypatch.setenv("JAVA_HOME", str(java))
    monkeypatch.setenv("PATH", os.pathsep.join([str(java / "bin"), os.environ["PATH"]]))

    def execute(operator: type[QueuekeeperSparkOperator], *, report: Any, **arguments: Any) -> QueuekeeperSparkOperator:
        (tmp_path / "probe.py").write_text(f"print({json.dumps(report)!r})\n", "utf-8")
        made = operator(task_id="task", job="probe.py", spark_jobs=str(tmp_path), **arguments)
        made.execute({})
        return made

    return execute


def told(operator: QueuekeeperSparkOperator, *, ended: bool) -> tuple[list[Any], list[Any]]:
    """Return inputs and outputs as OpenLineage's own extractor takes them, as it would send them."""
    extractor = DefaultExtractor(operator)
    found = extractor.extract_on_complete(None) if ended else extractor.extract()
    assert found is not None
    sent = [[json.loads(Serde.to_json(each)) for each in kind] for kind in (found.inputs, found.outputs)]
    assert "geheim" not in json.dumps(sent)
    return sent[0], sent[1]


def names(datasets: list[Any]) -> list[tuple[str, str]]:
    return [(each["namespace"], each["name"]) for each in datasets]


def test_a_copy_reads_the_tables_and_writes_sessions_below_the_prefix(
    plan_id: str, postgres_url: str, run: Callable[..., QueuekeeperSparkOperator]
) -> None:
    source = urlsplit(postgres_url)
    tables = [
        (f"postgres://{source.hostname}:{source.port}", f"{source.path[1:]}.public.{table}")
        for table in ("device_publish_msg", "device_session_ctx")
    ]
    sessions = [("redis://redis.example:6380", "2/tbmq:sessions")]
    begun = CopySessionsOperator(task_id="copy", spark_jobs="", plan_id=plan_id, cohorts="0")
    inputs, outputs = told(begun, ended=False)
    assert (names(inputs), names(outputs), outputs[0]["outputFacets"]) == (tables, sessions, {})
    copied = run(CopySessionsOperator, report={"messages_written": 12}, plan_id=plan_id, cohorts="0")
    inputs, outputs = told(copied, ended=True)
    assert (names(inputs), names(outputs)) == (tables, sessions)
    assert outputs[0]["outputFacets"]["outputStatistics"]["rowCount"] == 12


def test_an_archive_asks_spark_for_its_partitions_by_the_job_s_own_model() -> None:
    retired = {"table": "public.messages", "to_archive": [1, 12]}
    task = ArchivePartitionsOperator(task_id="archive", spark_jobs="", retired=retired, directory="file:///archives")
    parser = ArgumentParser()
    ArchiveWish.declare(parser)
    arguments = task.arguments({})
    assert ArchiveWish.take(vars(parser.parse_args(arguments))) == ArchiveWish(
        retired_ids=("1", "12"), directory="/archives"
    )
    assert not any("\n" in each for each in arguments)
    nothing = ArchivePartitionsOperator(task_id="a", spark_jobs="", retired={"to_archive": []}, directory="/archives")
    with pytest.raises(UsageError, match=r"retired_ids is \[\]: it must be the numbers of retired partitions"):
        nothing.arguments({})


def test_an_archive_in_an_object_store_is_asked_for_by_its_url_unless_no_driver_opens_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(directory: str) -> str:
        given: dict[str, Any] = {"task_id": "archive", "spark_jobs": "", "retired": {"to_archive": [1]}}
        (wish,) = ArchivePartitionsOperator(directory=directory, **given).wishes({})
        assert isinstance(wish, ArchiveWish)
        return wish.directory

    assert asked("memory://bucket/archives") == "memory://bucket/archives"
    with pytest.raises(UsageError, match=r"universal-pathlib and gcsfs .*let archive_directory name a folder"):
        asked("gs://bucket/archives")
    with pytest.raises(UsageError, match=r"^archive_directory names a user or a connection of Airflow"):
        asked("s3://aws_default@bucket/archives")
    monkeypatch.setenv("QUEUEKEEPER_ARCHIVES_DIR", "memory://bucket/others")
    assert asked("") == "memory://bucket/others"
    monkeypatch.setenv("QUEUEKEEPER_ARCHIVES_DIR", "gs://bucket/archives")
    with pytest.raises(UsageError, match=r"gcsfs .*let QUEUEKEEPER_ARCHIVES_DIR name a folder"):
        asked("")


@pytest.mark.parametrize(
    ("connection", "named"),
    [
        ({"host": "a.db,b.db", "port": 6000}, "postgres://a.db:6000"),
        ({"host": "::1,b.db"}, "postgres://[::1]:5432"),
        ({"host": "db"}, "postgres://db:5432"),
        ({}, "postgres://localhost:5432"),
    ],
)
def test_table_is_named_by_the_first_host_of_its_connection(
    connections: Callable[..., None], connection: dict[str, Any], named: str
) -> None:
    given = {"conn_type": "postgres", "schema": "t b", "password": "geheim", **connection}
    connections(queuekeeper_postgres=json.dumps(given))
    found = postgres_table("queuekeeper_postgres", "public.messages")
    assert (found.namespace, found.name) == (named, "t b.public.messages")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/archives/p 1", ("file", "/archives/p 1")),
        ("s3://bucket/archives/p%221", ("s3://bucket", "archives/p%221")),
        ("abfss://c@a.dfs.core.windows.net/x/p", ("abfss://c@a.dfs.core.windows.net", "x/p")),
    ],
)
def test_files_are_named_by_their_store(path: str, named: tuple[str, str]) -> None:
    found = parquet_files(path, rows=1, size_bytes=2, files=3)
    assert (found.namespace, found.name) == named


def test_an_archive_reads_partitions_and_writes_their_files(
    plan_id: str, postgres_url: str, run: Callable[..., QueuekeeperSparkOperator]
) -> None:
    source = urlsplit(postgres_url)
    database = source.path[1:]
    retired = {"table": "public.messages", "to_archive": [1]}
    begun = ArchivePartitionsOperator(task_id="archive", spark_jobs="", retired=retired, directory="/archives")
    inputs, outputs = told(begun, ended=False)
    assert (names(inputs)[0][1], outputs) == (f"{database}.public.messages", [])
    archived = run(ArchivePartitionsOperator, report={"archives": [ARCHIVE]}, retired=retired, directory="/archives")
    inputs, outputs = told(archived, ended=True)
    assert names(inputs) == [
        (f"postgres://{source.hostname}:{source.port}", f"{database}.queuekeeper_retired.messages_p1")
    ]
    assert inputs[0]["inputFacets"]["inputStatistics"]["rowCount"] == 7
    assert names(outputs) == [("file", "/archives/messages_p1")]
    facet = outputs[0]["outputFacets"]["outputStatistics"]
    assert (facet["rowCount"], facet["size"], facet["fileCount"]) == (7, 900, 2)
