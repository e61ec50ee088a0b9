"""Our own expectations hold the same of the same rows, whether PostgreSQL or Spark looks at them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queuekeeper.errors import UsageError
from queuekeeper.postgres import connect, migrate
from queuekeeper.quality import suites
from queuekeeper.quality.parquet import judge_parquet
from queuekeeper.quality.profile_tables import SPARK_ROWS
from tests.quality_rows import hash_of, queue, save_profile

QUEUES: list[dict[str, Any]] = [
    queue("well"),
    queue("tied", tied_serials=1, messages=20, live=20, highest_serial=29.0),
    queue("steps", step_errors=3, messages=10, live=10, highest_serial=19.0),
    queue("long", over_limit=1, messages=101, live=101, highest_serial=110.0),
    queue("endless", messages=70_000, live=70_000, highest_serial=70_009.0),
    queue("dead", dead=5, live=5, messages=10, highest_serial=19.0, dead_crowding=1),
    queue("orphan", orphans=2),
    queue("for ever", without_ttl=3, ttl_too_long=1),
    queue("}tag", bad_tag=1),
    queue("mixed", wrong_type_keys=1, foreign_references=None, mismatched=None),
    queue("counter", counter_missing=1, last_packet_id=None),
    queue("a"),
    queue("a}b"),
    queue("b}1"),
    queue("b}2"),
    queue("unknown", orphans=None, without_ttl=None, ttl_too_long=None, foreign_references=None),
]
COLUMN_KINDS = SPARK_ROWS.partition(", hours")[0]
COLUMNS = [field.split()[0] for field in COLUMN_KINDS.split(", ")]


def expectation(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": kwargs, "severity": "critical", "description": "d"}


# What is asked, and whom it finds.
ASKED: list[tuple[dict[str, Any], set[str]]] = [
    (expectation("queue_serials_to_increase"), {"tied"}),
    (expectation("queue_serials_to_increase", tolerated_share=0.05), set()),
    (expectation("queue_serials_to_increase", mostly=0.9), set()),
    (expectation("packet_ids_to_step_with_serials"), {"steps", "endless"}),
    (expectation("packet_ids_to_step_with_serials", tolerated_share=0.3), {"endless"}),
    (expectation("queue_to_keep_within_limit"), {"long"}),
    (expectation("queue_to_keep_within_limit", limit=15), {"tied", "long", "endless"}),
    (expectation("references_to_have_payloads"), {"dead"}),
    (expectation("references_to_have_payloads", tolerated_share=0.5), set()),
    (expectation("dead_references_to_leave_room"), {"dead"}),
    (expectation("payloads_to_be_referenced"), {"orphan"}),
    (expectation("payloads_to_expire"), {"for ever"}),
    (expectation("ttl_to_end_with_expiry"), {"for ever"}),
    (expectation("hash_tag_to_hold_client_together"), {"}tag"}),
    (expectation("keys_to_be_the_clients_own"), {"mixed"}),
    (expectation("last_packet_id_to_cover_queue"), {"counter"}),
    (expectation("stores_to_agree", column_list=["messages", "last_packet_id"]),
     {each["client_id"] for each in QUEUES}),
    (expectation("stores_to_agree", column_list=["messages", "messages"]), set()),
]  # fmt: skip


def suite(*expectations: dict[str, Any]) -> suites.Suite:
    text = {"name": "own", "description": "d", "identity": ["client_hash"], "expectations": list(expectations)}
    return suites.parse(json.dumps(text), name="own")


def outcome(report: suites.SuiteReport) -> list[tuple[bool, int, set[str], str]]:
    assert [result.broken for result in report.results if result.broken] == []
    return [
        (
            result.passed,
            result.unexpected_count,
            {str(example["client_hash"]) for example in result.examples},
            result.observed,
        )
        for result in report.results
    ]


@pytest.fixture
def profiled(postgres_url: str) -> str:
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)
    save_profile(postgres_url, *QUEUES)
    return postgres_url


def test_each_expectation_finds_its_queues_beyond_what_is_tolerated(profiled: str) -> None:
    report = suites.validate(
        suite(*(asked for asked, _ in ASKED)),
        postgres_url=profiled,
        table="queuekeeper.queue_profiles",
        shown=len(QUEUES),
    )

    for (asked, wanted), result in zip(ASKED, report.results, strict=True):
        assert result.passed is not bool(wanted), asked
        if "mostly" not in asked["kwargs"]:
            assert {example["client_hash"] for example in result.examples} == {hash_of(each) for each in wanted}, asked


def test_spark_finds_in_parquet_what_is_found_in_postgres(profiled: str, spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([tuple(each[name] for name in COLUMNS) for each in QUEUES], COLUMN_KINDS)
    frame.coalesce(1).write.parquet(str(tmp_path / "profile"))

    in_spark = judge_parquet(
        spark, path=str(tmp_path / "profile"), suite="sessions_redis", contents=True, is_clustered=True
    )

    with_neighbours = (
        "SELECT queues.*, 1 AS is_clustered, CAST(client_id IN ('a', 'b}1', 'b}2') AS int) AS shares_tag"
        " FROM queuekeeper.queue_profiles AS queues"
    )
    chosen = suites.load("sessions_redis")
    assert outcome(in_spark) == outcome(suites.validate(chosen, postgres_url=profiled, query=with_neighbours))
    assert {result.expectation.check for result in in_spark.failures} >= {"Q1", "Q3", "Q7", "Q9", "Q11", "Q18", "Q19"}
    two = suite(
        expectation("stores_to_agree", column_list=["messages", "last_packet_id"]),
        expectation("references_to_have_payloads", tolerated_share=0.4),
    )
    assert [result.unexpected_count for result in suites.validate(two, frame=frame).results] == [len(QUEUES), 1]


def test_what_is_no_parquet_of_a_profile_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no profile"):
        judge_parquet(spark, path=str(tmp_path / "nothing"), suite="sessions_redis", contents=True)
    with pytest.raises(UsageError, match="suite quarantine does not judge the sessions of one store"):
        judge_parquet(spark, path=str(tmp_path), suite="quarantine", contents=True)


def test_a_missing_column_is_a_broken_check_that_names_it(postgres_url: str) -> None:
    report = suites.validate(
        suite(expectation("payloads_to_be_referenced"), expectation("payloads_to_expire")),
        postgres_url=postgres_url,
        query="SELECT 'ab' AS client_hash, 1 AS messages, 0 AS without_ttl",
    )

    assert [result.passed for result in report.results] == [False, True]
    assert "orphans" in report.results[0].broken


def test_rows_that_cannot_be_told_apart_are_refused(postgres_url: str) -> None:
    chosen = suite(expectation("payloads_to_expire"))
    with pytest.raises(UsageError, match="the rows to check have no column 'client_hash', which tells them apart"):
        suites.validate(chosen, postgres_url=postgres_url, query="SELECT 1 AS a")
    with pytest.raises(UsageError, match=r"the query to check does not run: .*nowhere"):
        suites.validate(
            suite(expectation("payloads_to_expire")), postgres_url=postgres_url, query="SELECT * FROM nowhere"
        )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (expectation("payloads_to_expire", tolerated_share=2), "tolerated_share"),
        (expectation("queue_to_keep_within_limit", limit=0), "limit"),
        (expectation("stores_to_agree", column_list=["messages"]), "column_list"),
    ],
)
def test_a_threshold_that_makes_no_sense_is_refused(postgres_url: str, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s)expectation 1, {asked['type']}: .*{message}"):
        suites.validate(suite(asked), postgres_url=postgres_url, query="SELECT 'ab' AS client_hash")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"check": "Q99"}, "expectation 1: there is no check 'Q99'"),
        ({"check": "Q1", "severity": "info"}, "expectation 1: Q1 has no finding of severity info"),
        ({"needs_contents": 1}, "field 'needs_contents' is missing or not a bool"),
    ],
)
def test_a_suite_that_misnames_a_check_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        suite(expectation("payloads_to_expire") | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": "nothing"}, "rows is 'nothing': there is no statement sql/quality/nothing.sql"),
        ({"stores": ["mysql"]}, "stores is 'mysql': one of redis, postgres"),
    ],
)
def test_a_suite_whose_rows_cannot_be_found_is_refused(change: dict[str, Any], message: str) -> None:
    text = {"name": "own", "description": "d", "identity": ["a"], "expectations": [expectation("payloads_to_expire")]}
    with pytest.raises(UsageError, match=message):
        suites.parse(json.dumps(text | change), name="own")
