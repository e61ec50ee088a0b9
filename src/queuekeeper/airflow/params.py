"""Forms of the DAGs whose jobs have no model yet: typed parameters with units and limits."""

from __future__ import annotations

from airflow.sdk import Param

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION, REDIS_CONNECTION, SPARK_CONNECTION
from queuekeeper.keyspace import MAX_PACKET_ID, SLOTS
from queuekeeper.maintenance.remedies import REMEDY_NAMES
from queuekeeper.maintenance.remedies.registry import REMEDIES
from queuekeeper.migration.model import BadRows, MigrationParameters
from queuekeeper.quality.profile_model import LARGEST_PAYLOAD_BYTES, TURNS, ProfileParameters

_DEFAULTS = MigrationParameters()
_PROFILE = ProfileParameters()
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


def _key_prefix_param() -> Param:
    return Param(
        None,
        type=["null", "string"],
        pattern=r"^[^{}]*$",
        maxLength=200,
        title="Key prefix",
        description="Put before every Redis key; braces are not allowed. Set it to what TBMQ has in CACHE_PREFIX.",
        examples=["tbmq:"],
    )


def _approval_timeout_param() -> Param:
    return Param(
        1_440,
        type="integer",
        minimum=1,
        maximum=10_080,
        title="Time to answer (minutes)",
        description="How long the run waits for a person to approve the plan. No answer means reject.",
        examples=[60, 1_440],
    )


def session_migration_params() -> dict[str, Param]:
    """Return the form of ``session_migration``."""
    return {
        "mode": Param(
            "offline",
            type="string",
            enum=["offline", "online"],
            values_display={
                "offline": "offline: the broker is stopped",
                "online": "online: devices are connected, writers ask who owns a session",
            },
            title="Mode",
            description="offline: the broker is stopped from the plan to the end; nobody else writes to either store. "
            "online: clients change over one by one, fenced for milliseconds; every writer has to be a SessionRouter, "
            "or the trigger for other writers has to be installed.",
        ),
        "bad_rows": Param(
            str(_DEFAULTS.bad_rows),
            type="string",
            enum=[str(each) for each in BadRows],
            values_display={
                "quarantine": "quarantine: they are put aside in PostgreSQL, and their client moves",
                "leave": "leave: nothing is touched, and their client stays in PostgreSQL",
            },
            title="Rows that nobody can deliver (online)",
            description="What becomes of them in the mode online. The plan counts them by reason, for the approval. "
            "quarantine moves them, whole, to queuekeeper.session_quarantine. leave touches nothing and names their "
            "clients: mend the rows and cut over again to move them.",
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
        "key_prefix": _key_prefix_param(),
        **_online_params(),
        "approval_timeout_minutes": _approval_timeout_param(),
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


def _lease_param() -> Param:
    return Param(
        1_000,
        type="integer",
        minimum=50,
        maximum=1_000,
        title="Lease of a fence (milliseconds)",
        description="Online: longest that nobody can write to a client while it changes over. A client whose queue "
        "takes longer stays where it is and is named.",
        examples=[200, 1_000],
    )


def _online_params() -> dict[str, Param]:
    """Return what only a migration with devices connected looks at."""
    return {
        "require_trigger": Param(
            False,
            type="boolean",
            title="Other writers are refused",
            description="Online: go on only if PostgreSQL refuses writers that do not ask who owns a session "
            "(queuekeeper migrate trigger install). Needed when one of them is not a SessionRouter.",
        ),
        "lease_ms": _lease_param(),
        "canary_percent": Param(
            1,
            type="integer",
            minimum=1,
            maximum=100,
            title="Canary (percent of clients)",
            description="Online: this share goes to Redis, back to PostgreSQL and to Redis again before any other.",
            examples=[1, 5],
        ),
        "canary_steps_percent": Param(
            "1,10,50,100",
            type="string",
            pattern=r"^\d{1,3}(,\d{1,3})*$",
            title="Steps (percent of clients)",
            description="Online: shares at which the cut over stops and looks; rising, the last is 100.",
            examples=["1,10,50,100", "5,100"],
        ),
        "soak_minutes": Param(
            60,
            type="number",
            minimum=0,
            maximum=10_080,
            title="Soak time (minutes)",
            description="Online: how long all clients are watched on Redis, with a way back, before somebody is asked "
            "to commit.",
            examples=[10, 60, 1_440],
        ),
        "approval_limit_minutes": Param(
            1_440,
            type="integer",
            minimum=1,
            maximum=10_080,
            title="Life of an approval (minutes)",
            description="Online: an approval that is older when the cut over begins does not count.",
            examples=[60, 1_440],
        ),
        "four_eyes": Param(
            False,
            type="boolean",
            title="Four eyes",
            description="Who approves has to be somebody else than who triggered the run.",
        ),
    }


def session_rollback_params() -> dict[str, Param]:
    """Return the form of ``session_rollback``."""
    return {
        "plan_id": Param(
            "",
            type="string",
            pattern=r"^[0-9a-f]{16}$",
            title="Plan",
            description="Id of the plan whose cohorts are on Redis; its migration page shows it.",
            examples=["0123456789abcdef"],
        ),
        "cohorts": Param(
            "",
            type="string",
            pattern=r"^\s*$|" + _COHORTS,
            title="Cohorts",
            description="Which cohorts go back: numbers and ranges; empty is all that are on Redis.",
            examples=["", "0-3"],
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Stop after saying what would go back. Nothing is asked, nothing is moved.",
        ),
        "max_lag_s": Param(
            10,
            type="number",
            minimum=0,
            maximum=3_600,
            title="Mirror may be behind (seconds)",
            description="With a mirror further behind nothing goes back, since PostgreSQL may not take writes.",
            examples=[1, 10],
        ),
        "lease_ms": _lease_param(),
        "four_eyes": Param(
            False,
            type="boolean",
            title="Four eyes",
            description="Who approves has to be somebody else than who triggered the run.",
        ),
        "approval_timeout_minutes": _approval_timeout_param(),
        "postgres_conn_id": _connection_param(
            POSTGRES_CONNECTION,
            title="PostgreSQL connection",
            description="Database with TBMQ's tables, to which the clients go back.",
        ),
        "redis_conn_id": _connection_param(
            REDIS_CONNECTION,
            title="Redis connection",
            description="Redis or Valkey that owns the clients: a single server, or any node of a cluster.",
        ),
    }


def queue_quality_params() -> dict[str, Param]:
    """Return the form of ``queue_quality``."""
    return {
        "suite": Param(
            "fast",
            type="string",
            enum=["fast", "full"],
            values_display={"fast": "fast: one turn of the cohorts", "full": "full: all chosen cohorts"},
            title="Suite",
            description="fast reads one part in 96 of the cohorts; every quarter of an hour, that covers all of them "
            "in a day. full reads all that are chosen.",
        ),
        "stores": Param(
            "redis",
            type="string",
            enum=["redis", "postgres", "both", "events", "compacted", "fanout"],
            values_display={
                "redis": "Redis",
                "postgres": "PostgreSQL",
                "both": "Redis and PostgreSQL",
                "events": "Event broker and partitions",
                "compacted": "Compacted queues",
                "fanout": "Fan-out queues",
            },
            title="Stores",
            description="Where to look for queues, or the event broker with all partitioned tables, or compacted or "
            "fan-out queues in Redis. Nothing is written to any.",
        ),
        "compare": Param(
            False,
            type="boolean",
            title="Compare the stores",
            description="Hold source against target, too. They agree after a migration, until a broker uses the "
            "target; needs both stores.",
        ),
        "cohorts": Param(
            _PROFILE.cohorts,
            type="string",
            pattern=_COHORTS,
            title="Cohorts",
            description="Which cohorts to read: all, or numbers and ranges.",
            examples=["all", "0-3", "0-3,7,12-15"],
        ),
        "cohort_count": Param(
            _PROFILE.cohort_count,
            type="integer",
            minimum=1,
            maximum=SLOTS,
            title="Number of cohorts",
            description="How many ranges of hash slots the clients are cut into; a fast suite needs 96 or more.",
            examples=[96, 384],
        ),
        "sample_percent": Param(
            _PROFILE.sample_percent,
            type="integer",
            minimum=1,
            maximum=100,
            title="Sample (percent)",
            description="Read only the queues of so many of a hundred slots, the same ones each time. Counts are those "
            "of the sample, and a fault outside of it is not seen.",
            examples=[1, 10, 100],
        ),
        "turn": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            maximum=TURNS - 1,
            title="Turn",
            description="Which of the 96 parts a fast suite reads; empty takes that of the time of day.",
            examples=[None, 0, 95],
        ),
        "contents": Param(
            _PROFILE.contents,
            type="boolean",
            title="Judge contents",
            description="Judge the messages' JSON, too. The server decodes it and answers numbers; the user needs GET.",
        ),
        "limit": Param(
            _PROFILE.session_limit,
            type="integer",
            minimum=1,
            maximum=MAX_PACKET_ID,
            title="Limit (messages per session)",
            description="How many messages a session may hold. Set it to what TBMQ has in persisted-messages.limit.",
            examples=[1_000, 10_000, MAX_PACKET_ID],
        ),
        "default_ttl_s": Param(
            _PROFILE.default_ttl_s,
            type="integer",
            minimum=1,
            maximum=4_294_967_295,
            title="Default life (seconds)",
            description="Life of a message whose publisher set no expiry. Set it to what TBMQ has in "
            "persisted-messages.ttl.",
            examples=[86_400, 604_800, 2_592_000],
        ),
        "max_payload_bytes": Param(
            _PROFILE.max_payload_bytes,
            type="integer",
            minimum=1,
            maximum=LARGEST_PAYLOAD_BYTES,
            title="Largest payload (bytes)",
            description="Size beyond which a message counts as oversized.",
            examples=[65_536, 1_048_576],
        ),
        "throttle_references_per_s": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=2_147_483_647,
            title="Throttle (references per second)",
            description="Fastest rate of the reading of Redis; empty is as fast as the server allows.",
            examples=[None, 50_000],
        ),
        "parquet_directory": Param(
            None,
            type=["null", "string"],
            pattern=r"^/[^{}\x00-\x1F]+$",
            maxLength=1_024,
            title="Folder for Parquet",
            description="Write the rows of queues there as Parquet, too: an absolute path that all of Spark can write "
            "to. They hold client ids. Empty writes none.",
            examples=[None, "/srv/queue-profiles"],
        ),
        "key_prefix": _key_prefix_param(),
        "postgres_conn_id": _connection_param(
            POSTGRES_CONNECTION,
            title="PostgreSQL connection",
            description="Database with schema queuekeeper, where results are kept, and with TBMQ's tables if they are "
            "to be read.",
        ),
        "redis_conn_id": _connection_param(
            REDIS_CONNECTION,
            title="Redis connection",
            description="Redis or Valkey to read: a single server, or any node of a cluster. Read rights are enough.",
        ),
        "spark_conn_id": _connection_param(
            SPARK_CONNECTION,
            title="Spark connection",
            description="Where Spark runs, in client mode, for example local[2] or spark://host:7077.",
        ),
    }


def partition_maintenance_params() -> dict[str, Param]:
    """Return the form of ``partition_maintenance``."""
    return {
        "tables": Param(
            None,
            type=["null", "array"],
            items={"type": "string", "minLength": 3},
            title="Tables",
            description="Only these tables, as their policies name them; empty is every table that has a policy.",
            examples=[["pgmb.events"]],
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Stop after the plans and the report. Nothing is asked, nothing is written to a table.",
        ),
        "override_consumers": Param(
            False,
            type="boolean",
            title="Pass consumers",
            description="Retire also what a consumer has not read yet. A person is asked first, table by table.",
        ),
        "archive_directory": Param(
            None,
            type=["null", "string"],
            pattern=r"^/[^{}\x00-\x1F]+$",
            maxLength=1_024,
            title="Folder of archives",
            description="Where retired partitions are archived: an absolute path that all of Spark can write to. The "
            "files hold payloads. Empty takes QUEUEKEEPER_ARCHIVES_DIR, or archives in the home folder.",
            examples=[None, "/srv/queuekeeper/archives"],
        ),
        "approval_timeout_minutes": _approval_timeout_param(),
        "postgres_conn_id": _connection_param(
            POSTGRES_CONNECTION,
            title="PostgreSQL connection",
            description="Database with the partitioned tables and with schema queuekeeper; its user owns the tables.",
        ),
        "spark_conn_id": _connection_param(
            SPARK_CONNECTION,
            title="Spark connection",
            description="Where Spark runs, in client mode, for example local[2] or spark://host:7077.",
        ),
    }


def session_repair_params() -> dict[str, Param]:
    """Return the form of ``session_repair``."""
    return {
        "remedy": Param(
            REMEDY_NAMES[0],
            type="string",
            enum=list(REMEDY_NAMES),
            values_display={remedy.name: f"{remedy.name}: {remedy.purpose}" for remedy in REMEDIES.values()},
            title="Remedy",
            description="What to mend. The plan says how it can be undone, or that it cannot.",
        ),
        "dry_run": Param(
            True,
            type="boolean",
            title="Dry run",
            description="Stop after the plan and its summary. Nothing is asked, nothing is written to Redis.",
        ),
        "quality_run_id": Param(
            None,
            type=["null", "string"],
            pattern=r"^[0-9A-Za-z_.:+\-]*$",
            maxLength=200,
            title="Quality run",
            description="The queues that failed the remedy's check in this run are treated; empty is the newest run.",
            examples=["3f2a9c0d11e47b58"],
        ),
        "cohorts": Param(
            "all",
            type="string",
            pattern=_COHORTS,
            title="Cohorts",
            description="Only queues of these cohorts: all, or numbers and ranges, as the profile has cut them.",
            examples=["all", "0-3", "0-3,7,12-15"],
        ),
        "client_hashes": Param(
            None,
            type=["null", "array"],
            items={"type": "string", "pattern": "^[0-9a-f]{16}$"},
            title="Queues",
            description="Only these queues, by their names in reports, whatever their checks said; empty is all that "
            "failed.",
            examples=[["0123456789abcdef"]],
        ),
        "max_operations_per_s": Param(
            5_000,
            type=["null", "integer"],
            minimum=1,
            maximum=2_147_483_647,
            title="Throttle (keys per second)",
            description="Keys asked for per second, by plan and repair; empty is as fast as the server allows. It can "
            "be changed while the repair runs, see the runbook.",
            examples=[None, 1_000, 20_000],
        ),
        "key_prefix": _key_prefix_param(),
        "approval_timeout_minutes": _approval_timeout_param(),
        "postgres_conn_id": _connection_param(
            POSTGRES_CONNECTION,
            title="PostgreSQL connection",
            description="Database with schema queuekeeper: judgements of quality, and the records of repairs; for "
            "reorder_from_source also TBMQ's tables.",
        ),
        "redis_conn_id": _connection_param(
            REDIS_CONNECTION,
            title="Redis connection",
            description="Redis or Valkey with the sessions: a single server, or any node of a cluster.",
        ),
    }
