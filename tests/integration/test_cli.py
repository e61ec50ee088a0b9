"""The command line on real servers: results, JSON, exit codes, and what is said when something is wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any
from urllib.parse import urlsplit

import pytest

from queuekeeper import __version__, audit, schema_migrations
from queuekeeper.cli.output import printable
from queuekeeper.embedded import PostgresServer
from queuekeeper.migration.ledger.ledger import MigrationLedger, QuarantinedRow
from queuekeeper.migration.ledger.model import CohortState, PlanState
from queuekeeper.migration.online import clients
from queuekeeper.postgres import connect
from queuekeeper.sql_statements import statement
from tests import report_samples as samples
from tests.integration.command_line import CommandLine
from tests.spark_session import spark, spark_of_commands

__all__ = ["spark", "spark_of_commands"]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_home")]

commands = CommandLine()
run, as_json = commands.run, commands.as_json


def fails(*arguments: str, code: int, words: str) -> str:
    """Call a command that fails and prints nothing, and return what it says."""
    result = commands.fails(*arguments, code=code, words=words)
    assert result.stdout == ""
    return result.stderr


@pytest.fixture
def recorded(postgres_url: str, control_schema: None) -> str:
    """Address of a database that knows one verified plan with a hostile row in its quarantine."""
    evidence = samples.balanced(count=4)
    with connect(postgres_url, autocommit=True) as connection:
        ledger = MigrationLedger(connection)
        ledger.save_plan(evidence.plan, run_id="test")
        ledger.approve(samples.PLAN_ID, "admin")
        ledger.set_plan_state(samples.PLAN_ID, PlanState.VERIFIED)
        ledger.set_cohort_state(samples.PLAN_ID, evidence.plan.chosen, CohortState.VERIFIED)
        ledger.replace_ledger(samples.PLAN_ID, evidence.rows, samples.NOW_MS)
        row = QuarantinedRow(
            cohort=1, kind="message", reason="qos_out_of_range", detail="qos 7", client_id="\x1b[31m\u202e<b>x",
            serial_number=5, packet_id=9, payload=b"secret content",
        )  # fmt: skip
        ledger.replace_quarantine(samples.PLAN_ID, evidence.plan.chosen, [row])
    return postgres_url


def set_state(postgres_url: str, state: PlanState) -> None:
    """Have the recorded plan stand elsewhere."""
    with connect(postgres_url, autocommit=True) as connection:
        MigrationLedger(connection).set_plan_state(samples.PLAN_ID, state)


def test_version_and_help_need_no_server() -> None:
    assert run("--version").stdout.strip() == f"queuekeeper {__version__}"
    for command in ((), ("migrate",), ("migrate", "plan"), ("migrate", "undo"), ("sessions", "inspect"), ("sample",)):
        result = run(*command, "--help")
        assert result.exit_code == 0
    groups = (
        "migrate", "migrate trigger", "online", "sessions", "quality", "quality known", "quality incidents", "run",
        "run start", "cleanup", "repair", "partitions", "events", "compacted", "fanout", "fanout dead", "database",
        "acl", "audit",
    )  # fmt: skip
    for group in ((), *(name.split() for name in groups)):
        # One line says what a command does, and is not cut off.
        assert "..." not in run(*group, "--help").stdout.replace("[ARGS]...", "")
    assert "Example" in run("migrate", "copy", "--help").stdout
    assert "Nothing is written to Redis" in " ".join(run("migrate", "plan", "--help").stdout.split())


def test_help_imports_nothing_heavy() -> None:
    heavy = (
        "airflow", "altair", "pandas", "psycopg", "pydantic", "pyspark", "redis", "rich", "queuekeeper.sessions.model",
    )  # fmt: skip
    code = f"""if True:
        import sys, queuekeeper.cli
        try:
            queuekeeper.cli.main()
        finally:
            print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
    """
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)

    assert "Usage: " in done.stdout
    assert done.stderr.strip() == "[]"


def test_a_group_is_loaded_when_it_is_called_and_help_of_all_loads_none() -> None:
    code = """if True:
        import sys, queuekeeper.cli
        try:
            queuekeeper.cli.main()
        finally:
            names = ("compacted", "events", "fanout", "jobs", "migrate", "partitions", "quality", "sessions")
            print([name for name in names if f"queuekeeper.cli.{name}" in sys.modules], file=sys.stderr)
    """
    loaded = [
        subprocess.run([sys.executable, "-c", code, *words, "--help"], capture_output=True, text=True, check=True)
        for words in ((), ("sessions",), ("quality", "trend"))
    ]

    assert [each.stderr.strip() for each in loaded] == ["[]", "['sessions']", "['quality']"]
    assert "Usage: -c quality trend " in loaded[2].stdout


HEAVY = (
    "airflow", "altair", "great_expectations", "numpy", "opentelemetry.sdk.metrics", "pandas", "pyarrow", "pyspark",
    "sqlalchemy",
)  # fmt: skip


FINDS = {"doctor"}
"""Commands that end with 1 where they have found something."""


def loaded_by(lines: Iterable[str], *modules: str, **servers: str) -> dict[str, list[str]]:
    """Run commands one after the other in one process, and return for each which modules are loaded by then."""
    code = f"""if True:
        import io, sys
        from contextlib import redirect_stdout
        from queuekeeper.__main__ import main
        for words in sys.stdin.read().splitlines():
            sys.argv = ["queuekeeper", *words.split()]
            try:
                with redirect_stdout(io.StringIO()):
                    main()
            except SystemExit as ended:
                assert not ended.code or (ended.code == 1 and words in {FINDS}), words
            print(words, *(name for name in {modules} if sys.modules.get(name)), sep="\t")
    """
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(lines), capture_output=True, text=True,
        check=False, env=os.environ | servers,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {words: found for words, *found in (line.split("\t") for line in done.stdout.splitlines())}


ON_REDIS = (
    "acl redis", "sessions inspect meter-17 --store redis", "fanout register orders billing", "fanout inspect orders",
    "fanout verify orders", "compacted inspect meter-17", "compacted status",
)  # fmt: skip
ON_POSTGRES = (
    "run list", "run status", "audit list", "quality known list", "quality incidents list", "quality trend",
    "quality checks", "migrate status", "partitions retired", "database migrate",
)  # fmt: skip


def test_commands_that_ask_redis_alone_load_no_client_of_postgresql(valkey_url: str) -> None:
    assert loaded_by(ON_REDIS, "psycopg", QUEUEKEEPER_REDIS_URL=valkey_url) == {line: [] for line in ON_REDIS}


def test_commands_that_ask_postgresql_alone_load_no_client_of_redis(recorded: str) -> None:
    assert loaded_by(ON_POSTGRES, "redis", QUEUEKEEPER_POSTGRES_URL=recorded) == {line: [] for line in ON_POSTGRES}


def test_help_on_users_and_roles_loads_no_client() -> None:
    assert loaded_by(["acl --help"], "psycopg", "redis") == {"acl --help": []}


def test_help_on_the_jobs_that_can_be_started_loads_none_of_them() -> None:
    modules = ("psycopg", "redis", "rich", "queuekeeper.jobs.model", "queuekeeper.maintenance.fanout.repair", *HEAVY)
    # The help of one job loads that one.
    lines = {"run start --help": [], "run start event_upkeep --help": ["psycopg", "queuekeeper.jobs.model"]}
    assert loaded_by(lines, *modules) == lines


def test_commands_without_spark_load_neither_it_nor_what_it_brings(recorded: str, valkey_url: str) -> None:
    servers = {"QUEUEKEEPER_POSTGRES_URL": recorded, "QUEUEKEEPER_REDIS_URL": valkey_url}
    lines = ("status", *ON_REDIS, *ON_POSTGRES, "cleanup plan", "metrics", "migrate report")
    assert loaded_by(lines, *HEAVY, **servers) == {line: [] for line in lines}


def test_what_looks_at_servers_loads_no_form_of_a_job_and_no_plan(recorded: str, valkey_url: str) -> None:
    """Both take half a second where they load what makes plans, too; a scrape comes every minute."""
    servers = {"QUEUEKEEPER_POSTGRES_URL": recorded, "QUEUEKEEPER_REDIS_URL": valkey_url}
    planned = ("queuekeeper.jobs.common", "queuekeeper.migration.ledger.model", "queuekeeper.sessions.model")
    tables = ("queuekeeper.maintenance.partitions.model", "queuekeeper.maintenance.partitions.plan")

    assert loaded_by(["metrics"], *planned, *tables, **servers) == {"metrics": []}
    # It shows the partitions of each table, and what a plan would do.
    assert loaded_by(["doctor"], *planned, *HEAVY, **servers) == {"doctor": []}


def processor_s(*call: str, **servers: str) -> float:
    """Return the processor time of a Python from its start to its end."""
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *call], check=True, stdout=subprocess.DEVNULL, env=os.environ | servers)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# By day: the tests around it, which name the libraries that no command loads without need of them.
@pytest.mark.nightly
def test_commands_start_in_the_time_that_their_libraries_take(recorded: str, valkey_url: str) -> None:
    servers = {"QUEUEKEEPER_POSTGRES_URL": recorded, "QUEUEKEEPER_REDIS_URL": valkey_url}
    libraries = "import psycopg, pydantic_settings, redis, rich.console, typer"
    lines = (
        "--help", "sessions inspect meter-17 --store redis", "fanout inspect orders", "migrate status", "metrics",
    )  # fmt: skip
    calls = {"libraries": ("-c", libraries)} | {line: ("-m", "queuekeeper", *line.split()) for line in lines}
    processor_s("-m", "queuekeeper", "fanout", "register", "orders", "billing", **servers)
    # Each in turn, and the best of each: what else the machine does only makes one longer.
    taken = [{name: processor_s(*call, **servers) for name, call in calls.items()} for _ in range(3)]
    best = {name: min(each[name] for each in taken) for name in calls}
    shares = {name: best[name] / best["libraries"] for name in lines}

    # Where importing the libraries takes 0.35 s, these are the 0.2 s and the 0.5 s of docs/cli.md.
    assert shares.pop("--help") < 0.57, best
    assert max(shares.values()) < 1.43, best


def test_without_servers_the_sentence_says_how_to_start_them() -> None:
    fails("migrate", "status", code=4, words="no PostgreSQL is named .* run `queuekeeper up`, or name a server by")
    assert as_json("status")["servers"][0]["state"] == "stopped"
    assert as_json("down")["names"] == []
    assert "Nothing was running in " in run("down").stdout


def test_a_server_that_is_down_is_named(postgres_url: str) -> None:
    fails(
        "sessions", "inspect", "x", "--postgres-url", postgres_url, "--redis-url", "redis://127.0.0.1:1",
        code=4, words="Redis at 127.0.0.1:1 refuses the connection: nothing listens there",
    )  # fmt: skip


def test_session_of_one_store_is_shown_without_the_other(redis_url: str) -> None:
    nowhere = "postgresql://127.0.0.1:1/none"
    options = ("x", "--store", "redis", "--redis-url", redis_url, "--postgres-url", nowhere)
    shown = as_json("sessions", "inspect", *options)
    assert (shown.keys(), shown["redis"]["exists"]) == ({"client_id", "redis"}, False)
    assert "PostgreSQL" not in run("sessions", "inspect", *options).stdout


def test_errors_end_with_a_command_that_can_be_pasted(postgres_url: str) -> None:
    """It is the same call with what it lacks, the help of the command, or what examines the servers."""
    fails(
        "compacted", "append", "q", code=2,
        words=r"\(--input\); `queuekeeper compacted append --help` shows its options$",
    )  # fmt: skip
    away = ("--redis-url", "redis://:its-password@127.0.0.1:1")
    said = fails("fanout", "inspect", "x", *away, code=4, words="; `queuekeeper doctor` examines the servers$")
    assert "its-password" not in said
    password = urlsplit(postgres_url).password
    assert password
    for server in (("--postgres-url", postgres_url), (f"--postgres-url={postgres_url}",)):
        said = fails("sample", "--replace", "--seed", "7", *server, code=4, words="repeat the command with --yes: ")
        *words, _ = pasted = shlex.split(said.strip().split("`")[1])
        assert pasted[:5] == ["queuekeeper", "sample", "--replace", "--seed", "7"]
        assert pasted[-1] == "--yes"
        assert not any(password in word for word in words)


def test_a_wrong_password_is_refused_and_not_repeated(postgres_server: PostgresServer) -> None:
    wrong = f"postgresql://postgres:not-the-password@127.0.0.1:{postgres_server.port}/postgres"
    result = run("migrate", "status", "--postgres-url", wrong)

    assert result.exit_code == 4
    assert "password authentication failed" in result.stderr
    assert "not-the-password" not in result.output
    result = run("--debug", "migrate", "status", "--postgres-url", wrong)
    assert "Traceback" in result.stderr
    assert "not-the-password" not in result.output


NO_TEXT = os.fsdecode(b"\xff")
"""What a shell passes on that is not UTF-8."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("migrate", "plan", "--limit", "65536"), "limit is 65536: it must be an integer from 1 to 65,535"),
        (("migrate", "plan", "--default-ttl-s", "0"), "default_ttl_s is 0: it must be an integer from 1 to"),
        (("migrate", "plan", "--cohort-count", "0"), "cohort_count is 0"),
        (("migrate", "plan", "--key-prefix", "{x}"), "it must be text of at most 200 characters without a brace"),
        (("migrate", "plan", "--limit", "many"), "limit is 'many': it must be an integer from 1 to 65,535"),
        (
            ("migrate", "throttle", samples.PLAN_ID, "0"),
            "the rate is '0': write messages per second, 1 to 2,147,483,647, or none",
        ),
        (("online", "throttle", samples.PLAN_ID, "many"), "the rate is 'many': write clients per second"),
        (("cleanup", "throttle", samples.PLAN_ID, "9" * 10), "the rate is '9999999999': write operations per second"),
        (("run", "throttle", samples.PLAN_ID, "1.5"), "the rate is '1.5': write operations per second"),
        (("run", "throttle", samples.PLAN_ID, "5,0"), "the rate is '5,0': write operations per second"),
        (
            ("migrate", "plan", "--quarantine-cap-percent", "1,5"),
            "quarantine_cap_percent is '1,5': it must be a number",
        ),
        (
            ("run", "throttle", samples.PLAN_ID, "0", "--kind", "partition_creation"),
            "the rate is '0': write rows per second",
        ),
        (("migrate", "quarantine", "--reason", "bad_luck"), "the reason is 'bad_luck': it must be one of"),
        (("migrate", "replay", samples.PLAN_ID, "--reason", "bad_luck"), "the reason is 'bad_luck'"),
        (("sessions", "quarantine", "--reason", "bad_luck"), "the reason is 'bad_luck'"),
        (("sessions", "replay", "--reason", "bad_luck"), "the reason is 'bad_luck'"),
        (("audit", "list", "--limit", "0"), "invalid value for '--limit': '0': it must be 1 or more"),
        (("run", "list", "--limit", "1001"), "invalid value for '--limit': '1001': it must be 1000 or less"),
        (("audit", "list", "--limit", "many"), "invalid value for '--limit': 'many': it must be an integer"),
        (
            ("audit", "list", "--limit", "9" * 5_000),
            f"invalid value for '--limit': '{'9' * 60}..': it must be an integer",
        ),
        (
            ("sessions", "replay", "--store", "bad_luck"),
            "invalid value for '--store': 'bad_luck' is not one of 'owner',",
        ),
        (("sample", "--messages", "-1"), "messages is -1"),
        (("migrate", "undo"), "missing argument 'PLAN'"),
        (("run", "status", NO_TEXT), "RUN '\\udcff' is not UTF-8"),
        (("migrate", "copy", NO_TEXT, "--yes"), "PLAN '\\udcff' is not UTF-8"),
        (("quality", "trend", "--like", NO_TEXT), "--like '\\udcff' is not UTF-8"),
        (("quality", "run", "--profile", "REDIS", "--profile", NO_TEXT), "--profile '\\udcff' is not UTF-8"),
        (("partitions", "retired", NO_TEXT), "TABLE '\\udcff' is not UTF-8"),
        (("compacted", "gc-resume", NO_TEXT), "RUN '\\udcff' is not UTF-8"),
        (("repair", "repair_ttl", "--go-on", NO_TEXT), "--go-on '\\udcff' is not UTF-8"),
        (
            ("repair", "repair_ttl", "--quality-run-id", NO_TEXT),
            "quality_run_id is '\\udcff': it must be text in UTF-8",
        ),
        (("migrate", "nonsense"), "no such command 'nonsense'"),
        (("nonsense",), "no such command 'nonsense'"),
        (("incidents", "list"), "no such command 'incidents'. Did you mean `queuekeeper quality incidents`?"),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_asked(arguments: tuple[str, ...], words: str) -> None:
    fails(*arguments, code=2, words=re.escape(words))


@pytest.mark.parametrize(
    "command",
    [
        "partitions reattach NUMBER",
        "partitions restore NUMBER",
        "quality known remove NUMBER",
        "quality incidents own NUMBER --owner ops --reason why --until 2100-01-01",
        "quality incidents close NUMBER --reason why",
        "sessions quarantine NUMBER",
    ],
)
def test_a_number_beyond_all_that_are_given_out_is_one_that_is_not_there(recorded: str, command: str) -> None:
    number = str(10**20)
    words = command.replace("NUMBER", number).split()
    commands.fails(*words, "--postgres-url", recorded, code=2, words=f" {number}( was|:)")


def test_output_that_cannot_be_written_in_an_encoding_is_escaped(recorded: str) -> None:
    with connect(recorded, autocommit=True) as connection:
        audit.record(connection, actor="Zoë 🙂", action=audit.Action.PAUSE, subject="x", effect={})
    command = [sys.executable, "-m", "queuekeeper", "audit", "list", "--postgres-url", recorded]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}

    shown, told = (
        subprocess.run([*command, *more], env=env, capture_output=True, check=False) for more in ([], ["--json"])
    )

    assert (shown.returncode, shown.stderr, told.returncode, told.stderr) == (0, b"", 0, b"")
    assert rb"Zo\xeb \U0001f642" in shown.stdout
    assert json.loads(told.stdout)["entries"][0]["actor"] == "Zoë 🙂"


@pytest.mark.parametrize("named", ["COLUMNS", "LINES"])
@pytest.mark.parametrize("size", ["0", "-5", "many", "²"])
def test_size_that_is_none_is_not_taken_for_one(
    recorded: str, monkeypatch: pytest.MonkeyPatch, named: str, size: str
) -> None:
    monkeypatch.delenv(named, raising=False)
    shown = commands.run("run", "list", "--postgres-url", recorded).stdout
    monkeypatch.setenv(named, size)

    result = commands.run("run", "list", "--postgres-url", recorded)
    assert result.stdout == shown != "", result.output


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_command_does_its_work_where_a_standard_stream_is_closed(postgres_url: str, closed: str) -> None:
    for call, code in (("database migrate", 0), ("database migrate --json", 0), ("run undo nosuch", 2)):
        command = f"{sys.executable} -m queuekeeper {call} --postgres-url {postgres_url} {closed}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert (done.returncode, "unforeseen" in done.stderr) == (code, False), done.stderr
    with connect(postgres_url) as connection:
        assert schema_migrations.schema_version(connection) is not None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("call", ["run list", "run list --json", "run list --help", "--version"])
def test_answer_for_which_there_is_no_room_is_told_in_words(recorded: str, call: str) -> None:
    command = f"{sys.executable} -m queuekeeper {call} >/dev/full"
    for unbuffered in ("", "1"):
        env = os.environ | {"QUEUEKEEPER_POSTGRES_URL": recorded, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 1
        assert re.fullmatch(r"queuekeeper: nothing more can be written \(No space left on device\): .*\n", done.stderr)


def test_address_that_does_not_parse_hinders_only_what_needs_it(recorded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", "redis://:s3cret@[::1")

    assert commands.run("status").exit_code == 0
    assert commands.run("run", "list", "--postgres-url", recorded).exit_code == 0
    assert "s3cret" not in commands.run("status").output


def test_home_below_a_file_has_no_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QUEUEKEEPER_HOME", str(tmp_path / "file" / "home"))

    fails("run", "list", code=4, words="no PostgreSQL is named and the private one is not running")


def test_the_control_schema_is_made_once(postgres_url: str) -> None:
    first = as_json("database", "migrate", "--postgres-url", postgres_url)
    again = as_json("database", "migrate", "--postgres-url", postgres_url)

    assert first["applied"]
    assert again == {"applied": [], "version": first["version"]}
    fails("migrate", "status", "--postgres-url", postgres_url, code=2, words="there is no plan yet: make one by")


def test_status_tells_what_the_ledger_knows(recorded: str) -> None:
    facts = as_json("migrate", "status", "--postgres-url", recorded)

    assert facts["plan_id"] == samples.PLAN_ID
    assert facts["state"] == "verified"
    assert facts["approval"]["approved_by"] == "admin"
    assert facts["cohort_states"] == {"verified": 4}
    assert sum(row["rows_seen"] for row in facts["ledger"]) == facts["totals"]["messages"]
    assert "Ledger of 4 cohorts" in run("migrate", "status", "--postgres-url", recorded).stdout
    unknown = f"there is no plan 'ffffffffffffffff': the newest is {samples.PLAN_ID}"
    fails("migrate", "status", "ffffffffffffffff", "--postgres-url", recorded, code=2, words=unknown)


def test_the_throttle_can_be_set_and_lifted(recorded: str) -> None:
    throttle = ("migrate", "throttle", samples.PLAN_ID)
    set_state(recorded, PlanState.COPYING)

    assert as_json(*throttle, "20,000", "--postgres-url", recorded)["throttle_messages_per_s"] == 20_000
    assert as_json("migrate", "status", "--postgres-url", recorded)["throttle_messages_per_s"] == 20_000
    assert "no throttle" in run(*throttle, "none", "--postgres-url", recorded).stdout


def test_the_quarantine_is_listed_without_content_or_control_characters(recorded: str) -> None:
    listed = run("migrate", "quarantine", "--reason", "qos_out_of_range", "--postgres-url", recorded)
    facts = as_json("migrate", "quarantine", "--client", "\x1b[31m\u202e<b>x", "--postgres-url", recorded)

    assert r"\x1b[31m\u202e<b>x" in listed.stdout
    assert "\x1b" not in listed.stdout
    assert "secret content" not in listed.stdout + json.dumps(facts)
    assert [(row["client_id"], row["serial_number"]) for row in facts["rows"]] == [("\x1b[31m\u202e<b>x", "5")]
    assert facts["counts"][0]["command"].startswith(f"queuekeeper migrate replay {samples.PLAN_ID} --reason qos")
    assert printable("plain ☃ text") == "plain ☃ text"


def test_a_report_is_written_and_recorded(recorded: str, valkey_url: str, tmp_path: Path) -> None:
    servers = ("--postgres-url", recorded, "--redis-url", valkey_url)
    facts = as_json("migrate", "report", "--directory", str(tmp_path / "reports"), *servers)

    assert facts["verdict"] == "balanced"
    assert "✓ </span>Balanced" in Path(facts["html"]).read_text("utf-8")
    assert json.loads(Path(facts["json"]).read_bytes())["totals"] == facts["totals"]
    with connect(recorded, autocommit=True) as connection:
        assert [stored.sha256 for stored in MigrationLedger(connection).reports(samples.PLAN_ID)] == [facts["sha256"]]


def test_a_report_of_a_lost_message_ends_with_1(recorded: str, valkey_url: str, tmp_path: Path) -> None:
    evidence = samples.balanced(count=4)
    with connect(recorded, autocommit=True) as connection:
        lost = samples.with_lost_message(evidence.rows)
        MigrationLedger(connection).replace_ledger(samples.PLAN_ID, lost, samples.NOW_MS)
    servers = ("--postgres-url", recorded, "--redis-url", valkey_url, "--directory", str(tmp_path))

    assert as_json("migrate", "report", *servers, code=1)["totals"]["unaccounted"] == 1
    assert "the ledger of plan 0123456789abcdef does not balance" in run("migrate", "report", *servers).stderr


def test_nothing_is_written_unless_somebody_agrees(recorded: str, valkey_url: str) -> None:
    servers = ("--postgres-url", recorded, "--redis-url", valkey_url)

    fails("migrate", "undo", samples.PLAN_ID, *servers, code=4, words="Nobody can be asked here: repeat .* with --yes")
    fails("migrate", "replay", samples.PLAN_ID, *servers, code=4, words="Nobody can be asked here: repeat .* --yes")


@pytest.mark.parametrize("state", [PlanState.REFUSED, PlanState.VERIFIED])
def test_undo_lets_nobody_copy_a_plan_that_was_refused(recorded: str, valkey_url: str, state: PlanState) -> None:
    with connect(recorded, autocommit=True) as connection:
        connection.execute(statement("sessions/vendor_schema"))
        ledger = MigrationLedger(connection)
        ledger.set_plan_state(samples.PLAN_ID, state, "too many bad rows")
        ledger.record_progress(plan_id=samples.PLAN_ID, step="copy", part="all", done=7, total=7, at_ms=samples.NOW_MS)

        as_json("migrate", "undo", samples.PLAN_ID, *servers_of(recorded, valkey_url), "--yes")

        expected = state if state is PlanState.REFUSED else PlanState.APPROVED
        assert ledger.load_plan(samples.PLAN_ID).state is expected
        assert ledger.progress(samples.PLAN_ID, "copy").done == 0


def test_undo_takes_back_a_copy_that_was_made_while_it_asked(
    recorded: str, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(recorded, autocommit=True) as connection:
        connection.execute(statement("sessions/vendor_schema"))
        ledger = MigrationLedger(connection)
        ledger.set_plan_state(samples.PLAN_ID, PlanState.APPROVED)
        find = clients.clients_of

        def found(*arguments: Any, **options: Any) -> Any:
            ledger.set_plan_state(samples.PLAN_ID, PlanState.COPIED)
            return find(*arguments, **options)

        monkeypatch.setattr(clients, "clients_of", found)
        as_json("migrate", "undo", samples.PLAN_ID, *servers_of(recorded, valkey_url), "--yes")

        assert ledger.load_plan(samples.PLAN_ID).state is PlanState.APPROVED


def servers_of(postgres_url: str, redis_url: str) -> tuple[str, ...]:
    return ("--postgres-url", postgres_url, "--redis-url", redis_url)


def process(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: Spark and its Java runtime write to the real stdout.

    What one of those that start Spark writes is read; the others take the Spark of all tests.
    """
    code = "from queuekeeper.cli import main; main()"
    environment = os.environ | {"QUEUEKEEPER_HOME": str(home), "QUEUEKEEPER_SPARK_MASTER": "local[2]"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=False
    )


def test_a_migration_from_sample_to_undo(
    postgres_url: str, valkey_url: str, spark_of_commands: Any, tmp_path: Path
) -> None:
    servers = servers_of(postgres_url, valkey_url)
    sizes = ("--messages", "2000", "--sessions", "300", "--long-queues", "1", "--long-queue-messages", "400")
    sample = as_json("sample", *sizes, "--hostile", "--postgres-url", postgres_url)
    plan = as_json("migrate", "plan", "--quarantine-cap", "0.5", *servers)
    assert plan["totals"]["messages"] == sample["messages"]

    fails(
        "migrate", "copy", plan["plan_id"], *servers, code=4, words="Copy .* messages to Redis. .* repeat .* with --yes"
    )
    copied = process("migrate", "copy", plan["plan_id"], *servers, "--yes", "--json", home=tmp_path)
    assert copied.returncode == 0, copied.stderr
    assert json.loads(copied.stdout)["messages_written"] > 0
    assert re.search(r"copy [\d,]+/[\d,]+ messages \(\d+ %\)", copied.stderr)

    facts = as_json("migrate", "verify", *servers)
    assert (facts["balanced"], facts["unaccounted"], facts["differences"]) == (True, 0, 0)
    assert sum(row["rows_seen"] for row in facts["ledger"]) == sample["messages"]

    report = as_json("migrate", "report", "--directory", str(tmp_path), *servers)
    memory = json.loads(Path(report["json"]).read_bytes())["memory"]
    assert report["verdict"] == "balanced"
    # Within a fifth: a small sample with two messages of a megabyte.
    assert abs(memory["error_ratio"]) < 0.2

    with connect(postgres_url) as connection:
        row = connection.execute(
            "SELECT client_id FROM device_publish_msg WHERE client_id <> '' GROUP BY client_id ORDER BY count(*) DESC"
        ).fetchone()
    assert row is not None
    both = as_json("sessions", "inspect", row[0], "--limit", "5", *servers)
    assert both["redis"]["imported"]["plan_id"] == plan["plan_id"]
    assert both["redis"]["last_packet_id"] == both["postgres"]["last_packet_id"]
    assert "PostgreSQL" in run("sessions", "inspect", row[0], "--limit", "5", *servers).stdout

    repair = (
        "migrate",
        "replay",
        plan["plan_id"],
        "--reason",
        "packet_id_out_of_range",
        "--assign-packet-ids",
        *servers,
    )
    tried = as_json(*repair, "--dry-run")
    done = as_json(*repair, "--yes")
    assert tried["dry_run"] is True
    assert done["replayed"] == tried["replayed"] > 0
    assert as_json(*repair, "--as-new", "--dry-run")["as_new"] == 0

    with connect(postgres_url) as connection:
        connection.execute("UPDATE device_session_ctx SET last_updated_time = last_updated_time + 1")
    fails("migrate", "verify", *servers, code=3, words="the source has changed since plan")

    undo = ("migrate", "undo", plan["plan_id"], *servers)
    assert as_json(*undo, "--dry-run")["sessions_dropped"] > 0
    dropped = as_json(*undo, "--yes")
    assert dropped["sessions_dropped"] > 0
    assert as_json(*undo, "--dry-run")["sessions_dropped"] == 0
    duplicates = ("migrate", "replay", plan["plan_id"], "--reason", "packet_id_duplicate", "--assign-packet-ids")
    gone = as_json(*duplicates, "--as-new", "--dry-run", *servers)
    assert gone["moved_on"] > 0
    assert set(gone["why"].values()) == {"its session is not there any more"}
    assert as_json("migrate", "status", *servers[:2])["cohort_states"] == {"planned": 96}

    with connect(postgres_url) as connection:
        connection.execute("DROP TABLE device_publish_msg, device_session_ctx")
    fails(*undo, "--dry-run", code=4, words="undo finds the sessions by the source's tables: restore them first")


def test_private_servers_come_and_go(tmp_path: Path) -> None:
    try:
        up = as_json("up")
        assert [server["state"] for server in up["servers"][:2]] == ["running", "running"]
        assert as_json("database", "migrate")["version"] >= 1
        assert "running" in run("status").stdout
    finally:
        stopped = as_json("down")
    assert set(stopped["names"]) == {"postgres", "redis"}
    assert (tmp_path / "home" / "postgres").is_dir()


def test_a_migration_is_listed_steered_and_reported_like_any_run(
    recorded: str, valkey_url: str, tmp_path: Path
) -> None:
    there = ("--postgres-url", recorded)
    servers = (*there, "--redis-url", valkey_url)

    (listed,) = as_json("run", "list", *there)
    assert (listed["run"], listed["job"], listed["state"]) == (samples.PLAN_ID, "session_migration", "done")
    set_state(recorded, PlanState.COPYING)
    assert as_json("run", "pause", samples.PLAN_ID, *there)["paused"] is True
    assert "at most 5,000 messages/s" in run("run", "throttle", samples.PLAN_ID, "5000", *there).stdout
    status = as_json("run", "status", *there)
    assert (status["paused"], status["throttle_operations_per_s"], status["approved_by"]) == (True, 5_000, "admin")
    assert as_json("run", "resume", samples.PLAN_ID, *there)["paused"] is False
    set_state(recorded, PlanState.VERIFIED)
    fails("run", "pause", samples.PLAN_ID, *there, code=4, words="It is done: nothing is at work")
    reported = as_json("run", "report", samples.PLAN_ID, "--report-directory", str(tmp_path), *servers)
    assert Path(reported["html"]).parent == tmp_path
    assert as_json("run", "status", *there)["report"]["html"] == reported["html"]
    fails(
        "run", "undo", samples.PLAN_ID, "--dry-run", *servers, code=4, words="undo finds the sessions by the source's"
    )
