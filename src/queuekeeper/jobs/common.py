"""Parameters that several jobs have, each declared once; a job gives what differs: default, bound, nouns."""

from __future__ import annotations

from typing import Any

from queuekeeper.jobs.parameters import MAX_RATE_PER_S, Parameters, Section, parameter
from queuekeeper.keyspace import check_prefix


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


def max_operations_per_s(default: int | None, *, counted: str, examples: tuple[int | None, ...]) -> Any:
    """Declare the throttle of a run.

    :param counted: what counts as an operation, such as "Keys looked at".
    """
    return parameter(
        default,
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
    return parameter(
        None,
        title="Time limit (minutes)",
        help="Minutes after which a task stops and fails. It can be cleared to go on where it stopped.",
        unset="no limit",
        section=Section.PACE,
        least=1,
        most=10_080,
        examples=[None, 30, 240],
    )


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


class DryRun(Parameters):
    """Whether the run ends with its plan."""

    dry_run: bool = dry_run()


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
