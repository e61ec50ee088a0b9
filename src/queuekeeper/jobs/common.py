"""Parameters that several jobs have, each declared once; a job gives what differs: default, bound, nouns."""

from __future__ import annotations

from typing import Any

from queuekeeper.jobs.parameters import MAX_RATE_PER_S, Parameters, Section, days, minutes, parameter, same, seconds
from queuekeeper.keyspace import MAX_PACKET_ID, SLOTS, check_prefix
from queuekeeper.sessions.model import StoreRules


def key_prefix() -> Any:
    """Declare what stands before every key."""
    return parameter(
        "",
        title="Key prefix",
        help="Text that every Redis key begins with. Set it to what TBMQ has in CACHE_PREFIX.",
        section=Section.CONNECTIONS,
        longest=200,
        pattern=r"^[^{}]*$",
        check=check_prefix,
        examples=["tbmq:"],
    )


def limit() -> Any:
    """Declare how many messages a session holds; earlier releases called it ``session_limit`` in some places."""
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
    """Declare how long a message lives whose publisher did not say."""
    return seconds(
        StoreRules.default_ttl_s,
        title="Default life",
        help="Seconds for which a message lives when its publisher set no expiry. They count from the message's own "
        "time. Set it to what TBMQ has in persisted-messages.ttl.",
        section=Section.RULES,
        examples=[86_400, StoreRules.default_ttl_s, 2_592_000],
    )


def cohorts(*, what: str, default: str = "all", unset: str = "") -> Any:
    """Declare a choice of cohorts.

    :param what: what is done with those that are chosen, a sentence.
    :param unset: what holds where none is named, if that is allowed.
    """
    return parameter(
        default,
        proposed=default,
        title="Cohorts",
        help=f"{what} Write all, or numbers and ranges such as 0-3,7.",
        unset=unset,
        pattern=(r"^\s*$|" if unset else "") + r"^\s*(all|\d+(-\d+)?(\s*,\s*\d+(-\d+)?)*)\s*$",
        rule="it must be all, or numbers and ranges such as 0-3,7",
        noun="CHOICE",
        examples=["all", "0-3", "0-3,7,12-15"],
    )


def cohort_count(*, note: str) -> Any:
    """Declare how many ranges of hash slots there are.

    :param note: what more or fewer of them mean, a sentence.
    """
    return parameter(
        96,
        title="Number of cohorts",
        help=f"How many ranges of hash slots the clients are cut into. {note}",
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
        help=f"{counted} per second, over all tasks. It can be changed while the run works, see the runbook.",
        unset="as fast as the servers allow",
        section=Section.PACE,
        least=1,
        most=MAX_RATE_PER_S,
        examples=examples,
    )


def max_run_minutes() -> Any:
    """Declare how long a task works."""
    return minutes(
        None,
        title="Time limit",
        help="Minutes after which a task stops and fails. It can be cleared to go on where it stopped.",
        unset="no limit",
        section=Section.PACE,
        examples=[None, 30, 240],
    )


def needed(*, title: str, help: str, rule: str, **said: Any) -> Any:  # noqa: A002 - as of a parameter
    """Declare a text that somebody has to say."""
    return parameter("", needed=True, title=title, help=help, rule=rule, **said)


def run_id(*, help: str, unset: str, examples: list[str]) -> Any:  # noqa: A002 - as of a parameter
    """Declare the name under which somebody finds again what was asked for."""
    return parameter("", title="Run", help=help, unset=unset, examples=examples)


def approval_minutes(*, title: str, help: str) -> Any:  # noqa: A002 - as of a parameter
    """Declare for how long an approval is waited for, or counts: a day, unless somebody says otherwise."""
    return minutes(1_440, title=title, help=help, section=Section.APPROVAL, examples=[60, 1_440])


def shares(default: int, *, most: int, shared: str) -> Any:
    """Declare how many tasks share the work.

    :param shared: what the help says is shared out, a sentence.
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
    """Declare the id of a connection of Airflow."""
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
    """What stands before every key."""

    key_prefix: str = key_prefix()


class SessionRules(KeyPrefix):
    """What holds for persistent sessions."""

    limit: int = limit()
    default_ttl_s: int = default_ttl_s()


class Pacing(Parameters):
    """What every job is asked that the engine itself keeps to."""

    max_operations_per_s: int | None = max_operations_per_s(None, counted="Operations", examples=(None, 10_000, 50_000))
    max_run_minutes: int | None = max_run_minutes()


class RunParameters(Pacing, KeyPrefix):
    """What every job is asked that works in Redis."""

    shares: int = shares(1, most=64, shared="How many tasks share the work.")


class DryRun(Parameters):
    """Whether the run ends with its plan."""

    dry_run: bool = dry_run()


class DryRunFirst(Parameters):
    """The same, for a job that changes nothing unless somebody says so."""

    dry_run: bool = dry_run(True)


class Approval(Parameters):
    """How a person is asked."""

    approval_timeout_minutes: int = approval_minutes(
        title="Time to answer",
        help="Minutes that the run waits for a person to approve the plan. Without an answer the plan is rejected.",
    )


class FourEyes(Parameters):
    """Who may approve."""

    four_eyes: bool = parameter(
        False,
        title="Four eyes",
        help="Accept an approval only from a person who did not trigger the run.",
        section=Section.APPROVAL,
    )


class UndoRetention(Parameters):
    """How long undo files are kept."""

    undo_retention_days: int = days(
        7,
        title="Keep undo files",
        help="Days after which a run that starts removes undo files. The files name clients, and may hold values.",
        section=Section.RECORDS,
        most=365,
        examples=[1, 7, 30],
    )


class PostgresConnection(Parameters):
    """Where plans, approvals and progress are kept, and what is read or maintained in PostgreSQL."""

    postgres_conn_id: str = connection(
        "queuekeeper_postgres",
        title="PostgreSQL connection",
        help="Airflow connection of the database with schema queuekeeper, where plan, approval and progress are kept.",
    )


class Connections(PostgresConnection):
    """Both stores."""

    redis_conn_id: str = connection(
        "queuekeeper_redis",
        title="Redis connection",
        help="Airflow connection of Redis or Valkey: a single server, or any node of a cluster.",
    )


class SparkConnection(Parameters):
    """Where Spark runs."""

    spark_conn_id: str = connection(
        "queuekeeper_spark",
        title="Spark connection",
        help="Airflow connection of Spark, in client mode, for example local[2] or spark://host:7077.",
    )
