"""Forms of the DAGs: typed parameters with units and limits, and the check for names that no form has."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from airflow.sdk import Param

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION, REDIS_CONNECTION, SPARK_CONNECTION
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import MAX_PACKET_ID, SLOTS
from queuekeeper.migration.model import MigrationParameters

if TYPE_CHECKING:
    from airflow.sdk import Context

_DEFAULTS = MigrationParameters()
_CONNECTION = r"^[A-Za-z0-9_.\-]+$"
_COHORTS = r"^\s*(all|\d+(-\d+)?(\s*,\s*\d+(-\d+)?)*)\s*$"


def _connection_param(default: str, *, title: str, description: str) -> Param:
    return Param(
        default,
        type="string",
        pattern=_CONNECTION,
        maxLength=250,
        title=title,
        description=description,
        examples=[default],
    )


def session_migration_params() -> dict[str, Param]:
    """Return the form of ``session_migration``."""
    return {
        "mode": Param(
            "offline",
            type="string",
            enum=["offline"],
            values_display={"offline": "offline: the broker is stopped"},
            title="Mode",
            description="offline: the broker is stopped from the plan to the end; nobody else writes to either store.",
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Stop after the plan and its summary. Nothing is asked, nothing is written to Redis.",
        ),
        "cohorts": Param(
            _DEFAULTS.cohorts,
            type="string",
            pattern=_COHORTS,
            title="Cohorts",
            description="Which cohorts to copy: all, or numbers and ranges. The plan always counts all of them.",
            examples=["all", "0-3", "0-3,7,12-15"],
        ),
        "cohort_count": Param(
            _DEFAULTS.cohort_count,
            type="integer",
            minimum=1,
            maximum=SLOTS,
            title="Number of cohorts",
            description="How many ranges of hash slots the clients are cut into. More cohorts are smaller steps to "
            "copy, verify and repeat.",
            examples=[1, 24, 96, 384],
        ),
        "copy_groups": Param(
            2,
            type="integer",
            minimum=1,
            maximum=1_024,
            title="Copy groups",
            description="How many tasks share the chosen cohorts. Each starts a Spark driver of its own (10 to 20 "
            "seconds); a failed group is repeated without the others.",
            examples=[1, 2, 8],
        ),
        "limit": Param(
            _DEFAULTS.limit,
            type="integer",
            minimum=1,
            maximum=MAX_PACKET_ID,
            title="Limit (messages per session)",
            description="Newest live messages to keep per session; older ones are trimmed and counted. Set it to what "
            "TBMQ 2.x has in persisted-messages.limit.",
            examples=[1_000, 10_000, MAX_PACKET_ID],
        ),
        "default_ttl_s": Param(
            _DEFAULTS.default_ttl_s,
            type="integer",
            minimum=1,
            maximum=4_294_967_295,
            title="Default life (seconds)",
            description="Life of a message whose publisher set no expiry, counted from the message's own time. Set it "
            "to what TBMQ has in persisted-messages.ttl.",
            examples=[86_400, 604_800, 2_592_000],
        ),
        "quarantine_cap_percent": Param(
            _DEFAULTS.quarantine_cap * 100,
            type="number",
            minimum=0,
            maximum=100,
            title="Quarantine cap (percent of rows)",
            description="Share of the rows that may be unfit for copying before the plan is refused.",
            examples=[0, 1, 5.5],
        ),
        "throttle_messages_per_s": Param(
            _DEFAULTS.throttle_messages_per_s,
            type=["null", "integer"],
            minimum=1,
            maximum=2_147_483_647,
            title="Throttle (messages per second)",
            description="Fastest rate of the copy over all its tasks; empty is as fast as the servers allow. It can "
            "be changed while the copy runs, see the runbook.",
            examples=[None, 5_000, 50_000],
        ),
        "key_prefix": Param(
            None,
            type=["null", "string"],
            pattern=r"^[^{}]*$",
            maxLength=200,
            title="Key prefix",
            description="Put before every Redis key; braces are not allowed. Set it to what TBMQ has in CACHE_PREFIX.",
            examples=["tbmq:"],
        ),
        "approval_timeout_minutes": Param(
            1_440,
            type="integer",
            minimum=1,
            maximum=10_080,
            title="Time to answer (minutes)",
            description="How long the run waits for a person to approve the plan. No answer means reject.",
            examples=[60, 1_440],
        ),
        "postgres_conn_id": _connection_param(
            POSTGRES_CONNECTION,
            title="PostgreSQL connection",
            description="Database with TBMQ's tables; plan, ledger and quarantine are kept there, in schema "
            "queuekeeper.",
        ),
        "redis_conn_id": _connection_param(
            REDIS_CONNECTION,
            title="Redis connection",
            description="Redis or Valkey to copy to: a single server, or any node of a cluster.",
        ),
        "spark_conn_id": _connection_param(
            SPARK_CONNECTION,
            title="Spark connection",
            description="Where Spark runs, in client mode, for example local[2] or spark://host:7077.",
        ),
    }


def reject_unknown(conf: Mapping[str, object] | None, known: Mapping[str, object]) -> None:
    """Refuse a run that was given parameters which the form does not have; Airflow itself lets them pass.

    :param conf: what the run was triggered with.
    :param known: the DAG's parameters.
    :raises UsageError: naming each, with the nearest name that exists.
    """
    unknown = sorted(set(conf or {}) - set(known))
    if not unknown:
        return
    words = []
    for name in unknown:
        nearest = get_close_matches(name, known, n=1)
        words.append(f"{name!r} (did you mean {nearest[0]!r}?)" if nearest else f"{name!r}")
    raise UsageError(f"unknown parameter {', '.join(words)}: this DAG has {', '.join(sorted(known))}")


def reject_unknown_of(context: Context) -> None:
    """Refuse the run of a task's context as :func:`reject_unknown` does."""
    run = context["dag_run"]
    reject_unknown(run.conf, context["dag"].params)
