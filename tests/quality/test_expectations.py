"""Our own expectations hold the same of the same rows, whether PostgreSQL or Spark looks at them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queuekeeper import assets
from queuekeeper.errors import UsageError
from queuekeeper.quality.judge import suites, validation
from queuekeeper.quality.judge.parquet import judge_parquet
from queuekeeper.quality.profile.tables import SPARK_ROWS
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
    queue("packed", layout="packed", dead=2, messages=5, orphans=None, without_ttl=None, foreign_references=None),
    queue("twice", layout="packed", duplicate_packet_ids=2, tied_serials=1, dead_crowding=1),
    queue("spoiled", layout="packed", unreadable=1, ttl_too_long=1),
    queue("lost", layout="packed", bad_serials=2, state_faults=1),
    queue("in both", layout="packed", in_both_layouts=2),
    queue("left over", layout="packed", in_both_layouts=1),
    queue("unknown", orphans=None, without_ttl=None, ttl_too_long=None, foreign_references=None),
]
COLUMN_KINDS = SPARK_ROWS.partition(", hours")[0]
COLUMNS = [field.split()[0] for field in COLUMN_KINDS.split(", ")]


def rule_of(rule: str, *columns: str, ours: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
    return {
        "type": "expect_queue_to_keep_rule",
        "kwargs": {"rule": rule, "column_list": list(columns), **kwargs},
        "meta": {"queuekeeper": ours or {}},
        "severity": "critical",
        "description": "d",
    }


ORPHANS = rule_of("orphans = 0", "messages", "orphans")
EXPIRE = rule_of("without_ttl = 0", "messages", "without_ttl")

# What is asked, and whom it finds.
ASKED: list[tuple[dict[str, Any], set[str]]] = [
    (rule_of("dead = 0", "messages", "dead"), {"dead", "packed"}),
    (rule_of("dead <= 0.5 * messages", "messages", "dead"), set()),
    (rule_of("dead = 0", "messages", "dead", mostly=0.8), set()),
    (rule_of("live <= 15", "messages", "live"), {"tied", "long", "endless"}),
    (rule_of("step_errors = 0 OR orphans = 0", "step_errors", "orphans"), set()),
    (rule_of("messages IS NOT DISTINCT FROM last_packet_id", "messages", "last_packet_id"),
     {each["client_id"] for each in QUEUES}),
    (rule_of("messages IS NOT DISTINCT FROM messages", "messages", "live"), set()),
    # A value that is not known breaks no rule.
    (ORPHANS, {"orphan"}),
]  # fmt: skip

# Whom the suite of Redis finds, by the check and the severity of the finding: of both layouts, the packed ones.
FOUND_IN_REDIS = {
    ("Q1", "critical"): {"tied"},
    ("Q3", "warning"): {"steps", "endless"},
    ("Q5", "critical"): {"twice"},
    ("Q7", "warning"): {"long"},
    ("Q9", "warning"): {"dead"},
    ("Q9", "info"): {"packed"},
    ("Q10", "info"): {"orphan"},
    ("Q11", "critical"): {"counter"},
    ("Q13", "info"): {"for ever"},
    ("Q14", "warning"): {"spoiled"},
    ("Q17", "warning"): {"spoiled"},
    ("Q18", "critical"): {"}tag"},
    ("Q19", "critical"): {"mixed"},
    ("Q38", "critical"): {"lost"},
    ("Q38", "warning"): {"lost"},
    ("Q39", "critical"): {"in both"},
    ("Q39", "warning"): {"in both", "left over"},
}


def text_of(*expectations: dict[str, Any], **ours: Any) -> str:
    meta = {"queuekeeper": {"identity": ["client_hash"], **ours}}
    return json.dumps({"name": "own", "expectations": list(expectations), "meta": meta, "notes": "d"})


def suite(*expectations: dict[str, Any], **ours: Any) -> suites.Suite:
    return suites.parse(text_of(*expectations, **ours), name="own")


def outcome(report: validation.SuiteReport) -> list[tuple[bool, int, set[str], str]]:
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
def profiled(postgres_url: str, control_schema: None) -> str:
    save_profile(postgres_url, *QUEUES)
    return postgres_url


def test_a_rule_finds_the_queues_that_break_it_beyond_what_is_tolerated(profiled: str) -> None:
    report = validation.validate(
        suite(*(asked for asked, _ in ASKED)),
        postgres_url=profiled,
        table="queuekeeper.queue_profiles",
        shown=len(QUEUES),
    )

    for (asked, wanted), result in zip(ASKED, report.results, strict=True):
        assert result.passed is not bool(wanted), asked
        if "mostly" not in asked["kwargs"]:
            assert {example["client_hash"] for example in result.examples} == {hash_of(each) for each in wanted}, asked


# By day: tests/integration/test_cli_quality.py has Spark judge a profile's Parquet by the same suite.
@pytest.mark.nightly
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
    assert outcome(in_spark) == outcome(validation.validate(chosen, postgres_url=profiled, query=with_neighbours))
    found = {
        (result.check_id, str(result.severity)): {row["client_hash"] for row in result.examples}
        for result in in_spark.failures
    }
    wanted = {key: {hash_of(client_id) for client_id in clients} for key, clients in FOUND_IN_REDIS.items()}
    assert {key: found.get(key) for key in wanted} == wanted
    # Of sessions in TBMQ's layout and packed ones, each is judged by what is said of it.
    assert {
        (each.check_id, row["client_hash"])
        for each in in_spark.failures
        if each.check_id == "Q9"
        for row in each.examples
    } == {("Q9", hash_of("dead")), ("Q9", hash_of("packed"))}
    two = suite(
        rule_of("messages IS NOT DISTINCT FROM last_packet_id", "messages", "last_packet_id"),
        rule_of("dead <= 0.4 * messages", "messages", "dead"),
    )
    assert [result.unexpected_count for result in validation.validate(two, frame=frame).results] == [len(QUEUES), 1]


def test_what_is_no_parquet_of_a_profile_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no profile"):
        judge_parquet(spark, path=str(tmp_path / "nothing"), suite="sessions_redis", contents=True)
    with pytest.raises(UsageError, match="suite quarantine does not judge the sessions of one store"):
        judge_parquet(spark, path=str(tmp_path), suite="quarantine", contents=True)


def test_a_missing_column_is_a_broken_check_that_names_it(postgres_url: str) -> None:
    report = validation.validate(
        suite(ORPHANS, EXPIRE),
        postgres_url=postgres_url,
        query="SELECT 'ab' AS client_hash, 1 AS messages, 0 AS without_ttl",
    )

    assert [result.passed for result in report.results] == [False, True]
    assert "orphans" in report.results[0].broken


def test_rows_that_cannot_be_told_apart_are_refused(postgres_url: str) -> None:
    chosen = suite(EXPIRE)
    with pytest.raises(UsageError, match="the rows to check have no column 'client_hash', which identifies them"):
        validation.validate(chosen, postgres_url=postgres_url, query="SELECT 1 AS a")
    with pytest.raises(UsageError, match=r"the query to check does not run: .*nowhere"):
        validation.validate(suite(EXPIRE), postgres_url=postgres_url, query="SELECT * FROM nowhere")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (rule_of("", "messages", "live"), "rule"),
        (rule_of("messages = 0", "messages"), "column_list"),
        (rule_of("messages = 0", "messages", "live", tolerated_share=0.1), "tolerated_share"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(postgres_url: str, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s)expectation 1, {asked['type']}: .*{message}"):
        validation.validate(suite(asked), postgres_url=postgres_url, query="SELECT 'ab' AS client_hash")


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ({"check": "Q99"}, "expectation 1: there is no check 'Q99'"),
        ({"check": "Q10"}, "expectation 1: Q10 has no finding of severity critical"),
        ({"check": "Q1", "title": "Ordre"}, "expectation 1: title is 'Ordre': of Q1 it is 'Order', or left out"),
        ({"check": "Q1", "priority": "P1"}, "expectation 1: priority is 'P1': of Q1 it is 'P0'"),
        ({"check": "Q2", "remedy": "repair_ttl"}, "expectation 1: remedy is 'repair_ttl': of Q2 it is '', or left out"),
        ({"needs_contents": 1}, "field 'needs_contents' is missing or not a bool"),
        ({"chek": "Q1"}, "expectation 1, meta, queuekeeper: unknown field 'chek'"),
    ],
)
def test_a_suite_that_misnames_a_check_is_refused(ours: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        suite(rule_of("orphans = 0", "orphans", ours=ours))


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ({"rows": "nothing"}, "rows is 'nothing': there is no statement sql/quality/nothing.sql"),
        ({"stores": ["mysql"]}, "stores is 'mysql': one of redis, postgres"),
    ],
)
def test_a_suite_whose_rows_cannot_be_found_is_refused(ours: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        suite(EXPIRE, **ours)


def test_a_suite_of_the_old_shape_is_refused_with_where_to_read_how_it_is_written_now() -> None:
    text = {"name": "own", "description": "d", "identity": ["client_hash"], "expectations": [EXPIRE]}

    with pytest.raises(UsageError, match=r"'identity' stands at its top: rewrite it as docs/upgrading\.md says"):
        suites.parse(json.dumps(text), name="own")


@pytest.mark.parametrize("name", suites.names())
def test_a_user_of_great_expectations_opens_and_saves_a_suite_without_losing_a_word(name: str, tmp_path: Path) -> None:
    import great_expectations as gx

    import queuekeeper.quality.judge.expectations  # noqa: F401 - makes ours known

    text = assets.read("expectations", f"{name}.json")
    context = gx.get_context(mode="file", project_root_dir=tmp_path)
    file = tmp_path / "gx" / "expectations" / f"{name}.json"
    file.write_text(text, "utf-8")

    opened = context.suites.get(name)
    opened.save()

    given, saved = json.loads(text), json.loads(file.read_text("utf-8"))
    assert [without_id(each) for each in saved["expectations"]] == given["expectations"]
    assert saved["meta"] == given["meta"]
    assert saved["notes"] == given["notes"]
    # What they have saved is still ours to read.
    assert suites.parse(file.read_text("utf-8"), name=name) == suites.load(name)


def without_id(expectation: Any) -> dict[str, Any]:
    return {field: value for field, value in expectation.items() if field != "id"}
