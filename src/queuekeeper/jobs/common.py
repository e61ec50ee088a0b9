"""Parameters that several jobs have, each declared once; a job gives its own default, bound and nouns."""

from __future__ import annotations

from typing import Any

from queuekeeper.jobs.parameters import MAX_RATE_PER_S, Parameters, Section, days, minutes, parameter, same, seconds
from queuekeeper.jobs.resources import POSTGRES_CONNECTION, REDIS_CONNECTION, SPARK_CONNECTION
from queuekeeper.keyspace import MAX_PACKET_ID, SLOTS, check_cohorts
from queuekeeper.sessions.model import StoreRules

FOLDER_OR_URL = r"^(/|[a-z][a-z0-9+.-]*://)[^{}\x00-\x1F]+$"
"""Pattern of an absolute path or the URL of a folder in an object store; braces would be filled in by Airflow."""


def key_prefix() -> Any:
    """Declare the prefix of all keys."""
    return parameter(
        "",
        title="Key prefix",
        help="Text that every Redis key begins with. Set it to what TBMQ has in CACHE_PREFIX.",
        section=Section.CONNECTIONS,
        longest=200,
        pattern=r"^[^{}]*$",
        rule="it must be text of at most 200 characters without a brace, which would put all clients in one hash slot",
        examples=["tbmq:"],
    )


def limit() -> Any:
    """Declare how many messages a session holds; its old name is ``session_limit``."""
    return parameter(
        StoreRules.limit,
        title="Limit (messages per session)",
        help="Most messages that a session holds. Set it to what TBMQ has in persisted-messages.limit.",
        section=Section.RULES,
        least=1,
        most=MAX_PACKET_ID,
        examples=[1_000, StoreRules.limit, MAX_PACKET_ID],
        aliases={"session_limit": same},
    )


def default_ttl_s() -> Any:
    """Declare how long a message without an expiry lives."""
    return seconds(
        StoreRules.default_ttl_s,
        title="Default expiry",
        help="Seconds from a message's own time to its expiry when its publisher set none. Set it to what TBMQ has in "
        "persisted-messages.ttl.",
        section=Section.RULES,
        examples=[86_400, StoreRules.default_ttl_s, 2_592_000],
    )


def grace_s(default: int, *, help: str) -> Any:  # noqa: A002 - as of a parameter
    """Declare how long what nothing refers to stays, and what gets an expiry lives on."""
    return seconds(
        default, title="Grace", help=help, section=Section.RULES, most=31_536_000, examples=[600, 3_600, 86_400]
    )


def cohorts(*, what: str, default: str = "all", unset: str = "") -> Any:
    """Declare a choice of cohorts.

    :param what: sentence that says what is done with the chosen cohorts.
    :param unset: what holds without a choice, where that is allowed.
    """
    return parameter(
        default,
        proposed=default,
        title="Cohorts",
        help=f"{what} Write all, or numbers and ranges such as 0-3,7.",
        unset=unset,
        pattern=(r"^\s*$|" if unset else "") + r"^\s*(all|\d+(-\d+)?(\s*,\s*\d+(-\d+)?)*)\s*$",
        rule=f"it must be all, or numbers and rising ranges below {SLOTS:,}, such as 0-3,7",
        check=check_cohorts,
        noun="CHOICE",
        examples=["all", "0-3", "0-3,7,12-15"],
    )


def cohort_count(*, note: str) -> Any:
    """Declare how many ranges of hash slots there are.

    :param note: sentence that says what more or fewer ranges mean.
    """
    return parameter(
        96,
        title="Number of cohorts",
        help=f"Number of cohorts: ranges of hash slots into which clients are divided. {note}",
        section=Section.RULES,
        least=1,
        most=SLOTS,
        examples=[24, 96, 384],
    )


def max_operations_per_s(
    default: int | None, *, counted: str, examples: tuple[int | None, ...], proposed: int | None = None
) -> Any:
    """Declare the throttle of a run.

    :param counted: what counts as an operation, such as "Keys looked at".
    """
    return parameter(
        default,
        proposed=proposed,
        title="Throttle (operations per second)",
        help=f"{counted} per second, over all tasks. `queuekeeper run throttle RUN RATE` changes it while the run "
        "works.",
        unset="as fast as the servers allow",
        section=Section.PACE,
        least=1,
        most=MAX_RATE_PER_S,
        examples=examples,
    )


def max_run_minutes() -> Any:
    """Declare the longest time that a task works."""
    return minutes(
        None,
        title="Time limit",
        help="Minutes after which a task stops and fails. To go on where it stopped, clear the task, or give the "
        "command the run.",
        unset="no limit",
        section=Section.PACE,
        examples=[None, 30, 240],
    )


def run_id(*, help: str, unset: str, examples: list[str]) -> Any:  # noqa: A002 - as of a parameter
    """Declare the name by which a later step finds a request."""
    return parameter("", title="Run", help=help, unset=unset, examples=examples)


def rdb(*, help: str, **said: Any) -> Any:  # noqa: A002 - as of a parameter
    """Declare RDB files that are read instead of Redis.

    :param help: sentences that say what is read; who has a cluster is told more.
    """
    return parameter(
        (),
        title="RDB files",
        help=f"{help} Of a cluster, name the file of each master.",
        longest=1_024,
        noun="FILE",
        examples=[["/srv/backup/dump.rdb"]],
        **said,
    )


def rdb_database() -> Any:
    """Declare which logical database of RDB files is read."""
    return parameter(
        0,
        title="Database of the RDB files",
        help="Logical database of the RDB files that holds the queues.",
        least=0,
        examples=[0],
    )


def approval_minutes(*, title: str, help: str) -> Any:  # noqa: A002 - as of a parameter
    """Declare for how many minutes an approval is waited for, or counts; the default is a day."""
    return minutes(1_440, title=title, help=help, section=Section.APPROVAL, examples=[60, 1_440])


def shares(default: int, *, most: int, shared: str) -> Any:
    """Declare how many tasks share the work.

    :param shared: sentence of the help that says what is shared.
    """
    return parameter(
        default, title="Shares", help=shared, section=Section.PACE, least=1, most=most, examples=[1, 4, 16]
    )


def dry_run(default: bool = False) -> Any:
    """Declare whether a run ends with its plan."""
    return parameter(
        default,
        title="Dry run",
        help="Stop after the plan and its report. Nobody is asked, and nothing is changed.",
    )


def connection(default: str, *, title: str, help: str) -> Any:  # noqa: A002 - as of a parameter
    """Declare the id of an Airflow connection."""
    return parameter(
        default,
        title=title,
        help=help,
        section=Section.CONNECTIONS,
        pattern=r"^[A-Za-z0-9_.\-]+$",
        longest=250,
        rule="it must be the id of a connection: letters, digits, dot, hyphen and underscore, at most 250",
        examples=[default],
    )


class KeyPrefix(Parameters):
    """Prefix of all keys."""

    key_prefix: str = key_prefix()


class SessionRules(KeyPrefix):
    """Rules of persistent sessions."""

    limit: int = limit()
    default_ttl_s: int = default_ttl_s()


class Pacing(Parameters):
    """Parameters of every job that the engine itself obeys."""

    max_operations_per_s: int | None = max_operations_per_s(None, counted="Operations", examples=(None, 10_000, 50_000))
    max_run_minutes: int | None = max_run_minutes()


class RunParameters(Pacing, KeyPrefix):
    """Parameters of every job that works in Redis."""

    shares: int = shares(1, most=64, shared="How many tasks share the work.")


class DryRun(Parameters):
    """Whether the run ends with its plan."""

    dry_run: bool = dry_run()


class DryRunFirst(Parameters):
    """Whether the run ends with its plan, for a job that by default changes nothing."""

    dry_run: bool = dry_run(True)


class FourEyes(Parameters):
    """Who may approve."""

    four_eyes: bool = parameter(
        False,
        title="Four eyes",
        help="Accept an approval only from a person who did not trigger the run.",
        section=Section.APPROVAL,
    )


class Approval(FourEyes):
    """Who may approve, and how long the run waits for it."""

    approval_timeout_minutes: int = approval_minutes(
        title="Time to answer",
        help="Minutes that the run waits for a person to approve the plan. Without an answer the plan is rejected.",
    )


class UndoRetention(Parameters):
    """Days for which undo files are kept."""

    undo_retention_days: int = days(
        7,
        title="Keep undo files",
        help="Days for which undo files are kept; each run removes older ones when it starts, but for those of runs "
        "that may still go on. The files name clients and may hold values.",
        section=Section.RECORDS,
        most=365,
        examples=[1, 7, 30],
    )


class PostgresConnection(Parameters):
    """Connection of the database with plans, approvals and progress, and with tables that jobs read or maintain."""

    postgres_conn_id: str = connection(
        POSTGRES_CONNECTION,
        title="PostgreSQL connection",
        help="Airflow connection of the database with schema queuekeeper, where plan, approval and progress are kept.",
    )


class Connections(PostgresConnection):
    """Both stores."""

    redis_conn_id: str = connection(
        REDIS_CONNECTION,
        title="Redis connection",
        help="Airflow connection of Redis or Valkey: a single server, or any node of a cluster.",
    )


class SparkConnection(Parameters):
    """Where Spark runs."""

    spark_conn_id: str = connection(
        SPARK_CONNECTION,
        title="Spark connection",
        help="Airflow connection of Spark, in client mode, for example local[2] or spark://host:7077.",
    )
