"""``queuekeeper partitions`` on a real server: policies, plans, doing what they say, and refusals in words."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from queuekeeper import audit, postgres, schema_migrations
from queuekeeper.cli import app
from queuekeeper.postgres import Connection
from tests.integration.command_line import CommandLine
from tests.spark_session import spark, spark_of_commands
from tests.system_tables import ARCHIVE, PGMQ_META, QUEUE

__all__ = ["spark", "spark_of_commands"]

pytestmark = pytest.mark.integration

# Noon of the day on which the tests begin: no midnight falls between two commands.
NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)

SET = ("set", "public.readings", "--step", "1 day", "--ahead", "3 days", "--retention", "5 days", "--no-archive")

commands = CommandLine(group="partitions")
run, as_json, fails = commands.run, commands.as_json, commands.fails


@pytest.fixture
def connection(named_postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """A database with a partitioned table, named by the environment, from noon on."""
    instants = count(round(NOON.timestamp() * 1_000))
    for module in ("queuekeeper.cli.partitions", "queuekeeper.maintenance.partitions.runs"):
        monkeypatch.setattr(f"{module}.system_clock", lambda: next(instants))
    with postgres.connect(named_postgres, autocommit=True) as opened:
        opened.execute("CREATE TABLE readings (at timestamptz PRIMARY KEY) PARTITION BY RANGE (at)")
        yield opened


def old_partition(connection: Connection) -> None:
    edge = NOON.replace(hour=0) - timedelta(days=9)
    connection.execute(
        f"CREATE TABLE old PARTITION OF readings FOR VALUES FROM ('{edge}') TO ('{edge + timedelta(days=1)}')".encode()
    )
    connection.execute("INSERT INTO readings VALUES (%s)", [edge])


def test_command_that_comes_next_can_be_pasted_whatever_the_table_is_called(connection: Connection) -> None:
    name = """public."It's a $HOME log\""""
    connection.execute(f"CREATE TABLE {name} (at timestamptz PRIMARY KEY) PARTITION BY RANGE (at)".encode())
    said = run("set", name, *SET[2:]).stdout
    command = said[said.index("Next: queuekeeper partitions ") :].removeprefix("Next: queuekeeper partitions ")
    assert as_json(*shlex.split(command))["plans"][0]["table"] == name


def test_from_policy_to_drop_and_back(connection: Connection) -> None:
    policy = as_json(*SET)
    assert (policy["table"], policy["step"], policy["archive"]) == ("public.readings", "1 day", False)
    old_partition(connection)
    creation, retirement, drop = as_json("plan")["plans"]
    assert (creation["purpose"], creation["empty"]) == ("creation", False)
    assert [each["kind"] for each in retirement["steps"]] == ["detach"]
    assert drop["empty"]
    fails("status", code=1, words="public.readings needs maintenance")
    (short,) = [each for each in as_json("status", code=1)["tables"][0]["findings"] if each["kind"] == "short"]
    assert (short["check_id"], short["severity"], short["words"]) == ("Q27", "warning", short["description"])
    assert (short["subject"], short["command"]) == ("public.readings", "queuekeeper partitions plan")
    assert (short["remedy"], short["remedy_conf"]["tables"]) == ("partition_maintenance", ["public.readings"])

    dry = as_json("create", "--dry-run")
    assert dry["plans"][0]["steps"] == creation["steps"]
    (report,) = as_json("create")["reports"]
    assert report["done"]
    assert [each["state"] for each in report["outcomes"]] == ["done"] * len(creation["steps"])
    assert as_json("status")["tables"][0]["head_room_met"]

    fails("retire", code=4, words=r"1 partition of [\d,]+ bytes will leave the table\. Retire them\?.*--yes")
    assert as_json("retire", "--yes")["reports"][0]["done"]
    assert connection.execute("SELECT count(*) FROM readings").fetchone() == (0,)
    (record,) = as_json("retired")["retired"]
    assert (record["state"], record["partition_name"]) == ("quarantined", "old")

    assert as_json("reattach", str(record["retired_id"]), "--yes")["reports"][0]["done"]
    assert connection.execute("SELECT count(*) FROM readings").fetchone() == (1,)
    assert as_json("plan")["plans"][1]["held"][0]["partition"] == "public.old"


def test_retired_partition_is_archived_dropped_and_restored(
    connection: Connection, spark_of_commands: SparkSession, tmp_path: Path
) -> None:
    run(*SET[:-1], "--quarantine-days", "0")
    old_partition(connection)
    as_json("create")
    as_json("retire", "--yes")
    folder = ("--folder", str(tmp_path / "archives"))
    (archived,) = as_json("archive", *folder)["archives"]
    assert (archived["is_new"], archived["manifest"]["content"]["rows"]) == (True, 1)
    assert "Nothing is to be archived." in run("archive", *folder).stdout

    assert as_json("drop", "--yes")["reports"][0]["done"]
    (record,) = as_json("retired")["retired"]
    assert record["state"] == "dropped"
    assert as_json("restore", str(record["retired_id"]))["content"]["rows"] == 1
    assert as_json("reattach", str(record["retired_id"]), "--yes")["reports"][0]["done"]
    assert connection.execute("SELECT count(*) FROM readings").fetchone() == (1,)


def test_what_is_done_to_partitions_is_a_run_that_is_listed_told_and_audited(connection: Connection) -> None:
    run(*SET)
    old_partition(connection)
    as_json("create")
    as_json("create")
    fails("retire", code=4, words="Retire them")
    as_json("retire", "--yes")

    def runs(*arguments: str) -> Any:
        result = CliRunner().invoke(app, ["run", *arguments, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    listed = runs("list")
    assert [(each["job"], each["state"]) for each in listed] == [
        ("partition_retirement", "done"),
        ("partition_retirement", "rejected"),  # nobody could be asked
        ("partition_creation", "done"),
    ]
    retirement = listed[0]["run"]
    (told,) = runs("status", retirement)["progress"]
    assert (told["shard"], told["cursor"], told["removed"], told["done"]) == ("public.readings", "public.old", 1, True)
    report = runs("report", retirement)
    assert report["verdict"] == "retirement of public.readings: 1 of 1 steps are done"
    assert report["report"]["outcomes"][0]["state"] == "done"
    shown = CliRunner().invoke(app, ["run", "report", listed[1]["run"]]).stdout
    assert "0 of 1 steps are done" in shown
    assert "public.old" in shown
    told_of = audit.latest(connection, wanted=audit.AuditFilter(subject=retirement))
    assert [(each.action, json.loads(each.effect).get("partitions")) for each in reversed(told_of)] == [
        ("approve", None),
        ("apply", ["public.old"]),
    ]


def test_people_see_statements_locks_and_reasons(connection: Connection) -> None:
    run(*SET)
    old_partition(connection)
    shown = run("plan", "public.readings").stdout

    assert 'ALTER TABLE "public"."readings" DETACH PARTITION "public"."old" CONCURRENTLY' in shown
    assert "SHARE UPDATE EXCLUSIVE on public.readings: blocks VACUUM" in shown
    assert "all keys are older than 5 days" in shown
    assert run("create").exit_code == 0
    assert "head-room" in run("status").stdout
    assert "old" in run("retire", "--yes").stdout
    assert "quarantined" in run("retired").stdout


def test_what_is_wrong_with_one_table_does_not_stop_the_others(connection: Connection) -> None:
    connection.execute("CREATE TABLE gone (at timestamptz PRIMARY KEY) PARTITION BY RANGE (at)")
    run("set", "public.gone", "--step", "1 day", "--ahead", "1 day")
    run(*SET)
    connection.execute("DROP TABLE gone")
    result = run("create", "--json")

    assert result.exit_code == 1
    assert [each["done"] for each in json.loads(result.stdout)["reports"]] == [True]
    assert "public.gone: there is no table public.gone in this database" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("status",), 2, "no table has a policy: set one by `queuekeeper partitions set TABLE"),
        (("plan", "public.readings"), 2, "no policy for table 'public.readings'"),
        (("forget", "public.readings"), 2, "no policy for table 'public.readings'"),
        (("reattach", "7"), 2, "no retired partition 7"),
        (("set", "readings", "--step", "7 minutes", "--ahead", "1 day"), 2, "it does not divide a day"),
        (("set", "readings", "--step", "1 day", "--ahead", "1 day", "--retention", "-1 day"), 2, "more than nothing"),
        (("set", "public.nothing", "--step", "1 day", "--ahead", "1 day"), 2, "there is no table public.nothing"),
        (("set", "queuekeeper.plans", "--step", "1 day", "--ahead", "1 day"), 4, "is not partitioned"),
        (
            ("set", "public.readings", "--step", "1 day", "--ahead", "1 day", "--storage", "x"),
            2,
            "storage is 'x': each must be ",
        ),
        (("set", "public.readings", "--step", "1 day", "--ahead", "1 day", "--at-most", "0"), 2, "at_most is 0"),
    ],
)
def test_wrong_input_is_refused_in_words(
    connection: Connection, arguments: tuple[str, ...], code: int, words: str
) -> None:
    schema_migrations.migrate(connection)
    fails(*arguments, code=code, words=words)


def test_forgotten_policy_leaves_the_table_alone(connection: Connection) -> None:
    run(*SET)
    run("create")
    assert as_json("forget", "public.readings") == {"table": "public.readings", "forgotten": True}
    assert connection.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'readings'::regclass").fetchone() == (
        4,
    )


ADOPT = ("adopt", "public.visits", "--key", "at", "--step", "1 day", "--ahead", "2 days", "--disk-mib", "100")


def test_plain_table_is_adopted_and_committed_by_runs_that_are_planned_asked_about_and_told(
    connection: Connection,
) -> None:
    connection.execute("CREATE TABLE visits (id bigserial, at timestamptz NOT NULL, PRIMARY KEY (id, at))")
    connection.execute("INSERT INTO visits (at) SELECT %s FROM generate_series(1, 20)", [NOON])
    fails("adopt", "public.visits", code=2, words="key is missing: adopting a table needs it, such as --key created_at")
    plan = as_json(*ADOPT, "--dry-run")
    assert (
        sum("ATTACH PARTITION" in words for words, _ in plan["plan"]["statements"]) == plan["plan"]["partitions"] == 3
    )
    shown = run(*ADOPT, "--dry-run").output
    for words in ("CREATE TRIGGER queuekeeper_adoption", "LOCK TABLE ONLY", "ACCESS EXCLUSIVE", "others wait"):
        assert words in " ".join(shown.split()), words
    fails(*ADOPT, code=4, words=r"public\.visits: 20 rows will be copied.*Adopt\?.*--yes")
    assert as_json(*ADOPT, "--yes")["counts"]["copied"] == 20
    fails(*ADOPT, "--yes", code=4, words="was adopted, and nobody has committed it")
    assert as_json("status", "public.visits")["tables"][0]["head_room_met"]
    back = as_json("adopt", "public.visits", "--act", "back", "--yes")
    assert (back["clean"], back["counts"]["exchanged"]) == (True, 1)
    as_json(*ADOPT, "--yes")
    fails("adopt", "public.visits", "--act", "commit", code=4, words=r"dropped for good.*Commit\?")
    as_json("adopt", "public.visits", "--act", "commit", "--yes")
    assert connection.execute("SELECT count(*) FROM visits").fetchone() == (20,)


# --- tables of other systems --------------------------------------------------------------------------------------


def test_tables_of_other_systems_are_named_with_the_command_for_each(connection: Connection) -> None:
    assert "There is no table of graphile-worker, pg-boss, pgmq, procrastinate or River." in run("recognise").stdout
    connection.execute(
        f"{PGMQ_META}; CREATE TABLE pgmq.a_orders {ARCHIVE}; CREATE TABLE pgmq.q_orders {QUEUE}".encode()
    )
    shown = run("recognise").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "table system version form holds care" in lines
    assert "pgmq.a_orders pgmq – plain archived messages adopt" in lines
    assert "pgmq.q_orders: pgmq.delete() and pgmq.archive() take messages out of it." in lines
    # The command can be copied: it stays on one line.
    (command,) = [line for line in lines if line.startswith("queuekeeper ")]
    assert command.startswith(
        "queuekeeper partitions adopt pgmq.a_orders --key archived_at --widen-keys --step '1 day'"
    )
    fails("recognise", "public.readings", code=2, words=r"public\.readings is no table of graphile-worker, .* or River")
    fails("recognise", "public.nowhere", code=2, words=r"there is no table public\.nowhere in this database")


def test_shipped_policies_are_set_when_a_person_agrees_and_never_in_the_place_of_others(connection: Connection) -> None:
    connection.execute(PGMQ_META)
    for table, columns in (("q_orders", QUEUE), ("a_orders", ARCHIVE), ("a_own", ARCHIVE)):
        connection.execute(f"CREATE TABLE pgmq.{table} {columns} PARTITION BY RANGE (msg_id)".encode())
    as_json("set", "pgmq.a_own", "--step", "7", "--ahead", "7")
    question = (
        r"2 policies will be set: pgmq\.a_orders, pgmq\.q_orders\. Old partitions leave by them\. Set them\?.*--yes"
    )
    fails("recognise", "--set-policies", code=4, words=question)
    assert all(each["has_policy"] == (each["table"] == "pgmq.a_own") for each in as_json("recognise")["tables"])
    assert as_json("recognise", "pgmq.q_orders", "--set-policies", "--yes")["set"] == ["pgmq.q_orders"]
    assert as_json("recognise", "--set-policies", "--yes")["set"] == ["pgmq.a_orders"]
    assert as_json("recognise", "--set-policies")["set"] == []
    plans = {each["table"]: each["policy"] for each in as_json("plan")["plans"]}
    assert {name: (each["step"], each["retention"], each["archive"]) for name, each in plans.items()} == {
        "pgmq.a_orders": ("10000", "100000", True), "pgmq.a_own": ("7", None, True),
        "pgmq.q_orders": ("10000", "100000", False),
    }  # fmt: skip
    assert all(each["done"] for each in as_json("create")["reports"])
    connection.execute("INSERT INTO pgmq.q_orders (message) VALUES ('{}')")
