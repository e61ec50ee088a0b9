"""The demo as a program: its exit code, its servers, and the steps of its day in their order."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from queuekeeper import assets, embedded, redis_client
from queuekeeper.config import Settings
from queuekeeper.demo.day import Day, DemoOptions, Outcome, say, side_by_side
from queuekeeper.demo.migration import fill_source, migrate_sessions
from queuekeeper.demo.partitions import keep_partitions
from queuekeeper.demo.quality import judge_and_mend
from queuekeeper.demo.queues import collect_compacted, repair_fanout
from queuekeeper.embedded import AirflowClient, PostgresServer, RedisServer
from queuekeeper.errors import CheckFailed, QueuekeeperError, RefusedError
from queuekeeper.java import SHORT_LIVED, WITHOUT_COMPILING
from queuekeeper.postgres import connect
from queuekeeper.schema_migrations import migrate
from queuekeeper.sessions.sample import SampleReport
from queuekeeper.sql_statements import statement
from queuekeeper.wording import number_of

PARTS_OF_THE_DAY = ((migrate_sessions,), (judge_and_mend, collect_compacted, repair_fanout, keep_partitions))
"""Works that go on side by side, part after part."""
STEPS = ("Migration", "Finding", "Remedy", "Quality", "Partitions", "Compacted", "Fan-out")
"""Names of the steps, in the order in which they are told."""

_MARK = "filled by the demo"
"""Comment on the database that a demo has filled, and may empty again."""

_SHORT_SPARKS = " ".join([SHORT_LIVED, *(f"-D{name}={value}" for name, value in WITHOUT_COMPILING.items())])
"""How Java runs each Spark of the demo, which is at work for seconds."""

_LOOK_EVERY_S = 0.5
_ANSWER_WITHIN_S = 120.0
"""Airflow's first answers take half a minute on a busy machine; an Airflow that has died refuses at once."""


def main() -> int:
    """Run the demo and return the exit code."""
    console = Console(highlight=False)
    # A terminal that goes away or a supervisor's SIGTERM must stop the servers just as Ctrl-C does, and Ctrl-C also
    # where a shell has started this in its background.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        options = DemoOptions.read(os.environ)
        # Always the private servers, since the demo empties the stores that it uses.
        return run(Settings(postgres_url=None, redis_url=None), options, console)
    except QueuekeeperError as error:
        console.print(f"[red]The demo stopped:[/] {escape(str(error))}")
        return error.exit_code
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130


def run(settings: Settings, options: DemoOptions, console: Console) -> int:
    """Show the day and return the exit code: 0 when every step came out as it should.

    :raises RefusedError: when another demo uses the same home.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(_only_one(settings.home))
        stack.enter_context(_servers_as_before(settings, console))
        say(console, began, "Starting the demo's own PostgreSQL and Redis")
        embedded.up(settings)
        postgres_url = _begin_anew(settings)
        os.environ.setdefault("SPARK_SUBMIT_OPTS", _SHORT_SPARKS)
        # By its schedule, a run would come before the one that is shown.
        airflow = embedded.private_airflow(settings, schedules=False)
        with ThreadPoolExecutor(1) as other:
            say(console, began, "Starting Airflow, and filling PostgreSQL meanwhile")
            started = other.submit(airflow.start)
            try:
                connection = stack.enter_context(connect(postgres_url, autocommit=True))
                migrate(connection)
                sample = fill_source(connection, options)
                say(console, began, _describe(sample))
                started.result()
            except BaseException:
                # Otherwise an interrupt would wait until Airflow has started.
                while not started.done():
                    airflow.stop()
                    wait([started], timeout=_LOOK_EVERY_S)
                raise
        admin = airflow.user("admin")
        signing_in = f"user [b]{admin.name}[/]  password [b]{admin.password}[/]"
        say(console, began, f"Airflow is up: [link]{airflow.url}[/]  {signing_in}")
        with AirflowClient(airflow.url, user=admin.name, password=admin.password, timeout_s=_ANSWER_WITHIN_S) as client:
            _end_leftovers(client)
            day = Day(
                settings=settings,
                options=options,
                console=console,
                began=began,
                client=client,
                connection=connection,
                redis=stack.enter_context(redis_client.connect(embedded.addresses_with_passwords(settings)["redis"])),
            )
            for works in PARTS_OF_THE_DAY:
                side_by_side([work(day) for work in works])
        console.print(f"Airflow     {airflow.overview_url}", soft_wrap=True)
        console.print(f"            user {admin.name}, password {admin.password}")
        console.print("Signed in there, open what each step has shown:")
        for outcome in sorted(day.outcomes, key=lambda each: STEPS.index(each.step)):
            console.print(_told(outcome), soft_wrap=True)
        console.print(f"Kept in     {settings.home}: `{_shows_again(settings.home)}` shows it again", soft_wrap=True)
        console.print(f"Time taken  {time.monotonic() - began:.0f} s")
        if not options.leave:
            console.print("The user interface stays up. Ctrl-C ends the demo.")
            _wait_for_interrupt()
        return 0 if all(outcome.sound for outcome in day.outcomes) else CheckFailed.exit_code


def _told(outcome: Outcome) -> str:
    line = outcome.line if outcome.sound else f"[red]{outcome.line}[/]"
    return f"{outcome.step:<11} [link]{outcome.page}[/]: {line}"


def _shows_again(home: Path) -> str:
    """Return the command that starts the servers of a home again."""
    around = assets.checkout()
    if around is not None and home == around / "var":
        return "make up"
    is_usual = home == Settings.model_fields["home"].get_default(call_default_factory=True)
    return f"{'' if is_usual else f'QUEUEKEEPER_HOME={shlex.quote(str(home))} '}queuekeeper up --airflow"


def _describe(sample: SampleReport) -> str:
    return (
        f"The database holds {number_of(sample.messages, 'message')} in {number_of(sample.sessions, 'session')}; the "
        f"longest queue has {sample.longest_queue:,}, and {number_of(sum(sample.hostile.values()), 'hostile row')}"
    )


def _end_leftovers(client: AirflowClient) -> None:
    """End runs that an interrupted demo has left: their data are gone, and the runs of this one would wait for them."""
    for state in ("queued", "running"):
        for run in client.call("GET", "/dags/~/dagRuns", query={"state": state, "limit": 100})["dag_runs"]:
            client.call("PATCH", f"/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}", body={"state": "failed"})


def _begin_anew(settings: Settings) -> str:
    """Empty the private servers of this home and return the address of their database.

    :raises RefusedError: when they hold data that no demo has made.
    """
    database = embedded.DATABASE
    postgres, redis = PostgresServer(settings.home / "postgres"), RedisServer(settings.home / "redis")
    with connect(postgres.database_url(database), autocommit=True) as connection, redis.client() as client:
        row = connection.execute(statement("queuekeeper/queries/database_contents"), {"mark": _MARK}).fetchone()
        assert row is not None
        is_marked, tables = row
        if not is_marked and (tables or client.dbsize()):
            raise RefusedError(
                f"the private servers in {settings.home} hold data that no demo has made, and the demo begins by "
                "emptying them: run it with another QUEUEKEEPER_HOME, or stop them by `queuekeeper down` and remove "
                "that folder"
            )
        client.flushdb()
    postgres.drop_database(database)
    url = postgres.create_database(database)
    with connect(url, autocommit=True) as connection:
        connection.execute(f"COMMENT ON DATABASE {database} IS '{_MARK}'")
    return url


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    with (home / "demo.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(
                f"another demo runs in {home}: end it first, or choose another QUEUEKEEPER_HOME"
            ) from error
        yield


@contextmanager
def _servers_as_before(settings: Settings, console: Console) -> Iterator[None]:
    """Stop at the end the servers that did not run before."""
    before = {server.name for server in embedded.status(settings).servers if server.is_running}
    try:
        yield
    finally:
        # A second Ctrl-C would leave servers behind.
        earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if not before:
                console.print("Stopping the servers.")
                embedded.down(settings)
            elif "api-server" not in before:
                console.print("Stopping Airflow; the other servers ran before and stay.")
                embedded.down_airflow(settings)
        finally:
            signal.signal(signal.SIGINT, earlier)


def _wait_for_interrupt() -> None:
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
