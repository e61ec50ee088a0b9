"""Roles of PostgreSQL with the least that each job needs, as statements that somebody who may grant it all runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from queuekeeper.checks import of_job
from queuekeeper.errors import UsageError
from queuekeeper.migration.servers import MESSAGES, SESSIONS, SOURCE_TABLES
from queuekeeper.sql_statements import statement

DEFAULT_PREFIX = "queuekeeper_"
_LONGEST_NAME_BYTES = 63


class Place(StrEnum):
    """Where a part of what a role needs is; a database need not have all of them."""

    CONTROL = "control"  # schema queuekeeper
    SESSIONS = "sessions"  # the vendor's two tables
    EVENTS = "events"  # schema pgmb


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Privileges on objects of one place.

    :param columns: of a table, where not all of them are meant.
    :param kind: ``TABLE``, ``SEQUENCE`` or ``ROUTINE``.
    """

    place: Place
    privileges: tuple[str, ...]
    names: tuple[str, ...]
    columns: tuple[str, ...] = ()
    kind: str = "TABLE"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement, and the place that it is about; none when it is about the role itself."""

    place: Place | None
    sql: str


@dataclass(frozen=True, kw_only=True)
class PostgresRole:
    """What one job needs of a PostgreSQL.

    :param job: name of the role, after a prefix.
    :param purpose: in a sentence.
    :param reads_payloads: whether it could read the content of messages or events.
    :param told_sizes: whether it is told sizes of payloads that it may not read.
    :param reads_keys: whether it looks how far partitioned tables reach.
    """

    job: str
    purpose: str
    grants: tuple[Grant, ...]
    reads_payloads: bool = False
    told_sizes: bool = False
    reads_keys: bool = False

    def statements(self, *, prefix: str = DEFAULT_PREFIX, sessions_schema: str = "public") -> list[Statement]:
        """Return what makes the role, takes away what it had, and grants what it needs; may be run again.

        :param prefix: before the names of roles.
        :param sessions_schema: where the vendor's tables are.
        :raises UsageError: when a name is too long for PostgreSQL.
        """
        role = quoted(f"{prefix}{self.job}")
        schemas = {Place.CONTROL: "queuekeeper", Place.SESSIONS: sessions_schema, Place.EVENTS: "pgmb"}
        made = [Statement(place=None, sql=_file("make_role", the_role=f"{prefix}{self.job}"))]
        for place in Place:
            schema = quoted(schemas[place])
            if place is Place.SESSIONS:
                tables = ", ".join(f"{schema}.{quoted(name)}" for name in SOURCE_TABLES)
                made.append(Statement(place=place, sql=f"REVOKE ALL ON TABLE {tables} FROM {role}"))
            else:
                for kind in ("TABLES", "SEQUENCES", "ROUTINES"):
                    taken = f"REVOKE ALL ON ALL {kind} IN SCHEMA {schema} FROM {role}"
                    made.append(Statement(place=place, sql=taken))
            grants = [each for each in self.grants if each.place is place]
            if grants:
                made.append(Statement(place=place, sql=f"GRANT USAGE ON SCHEMA {schema} TO {role}"))
            made += [Statement(place=place, sql=_granted(each, schema, role)) for each in grants]
        if self.told_sizes:
            made += [Statement(place=Place.SESSIONS, sql=each) for each in _size_teller(quoted(sessions_schema), role)]
        if self.reads_keys:
            made.append(Statement(place=Place.CONTROL, sql=_file("read_keys", the_role=f"{prefix}{self.job}")))
        maker, reader = f"{prefix}{_ALTERS}", f"{prefix}{_ARCHIVES}"
        if self.job == _ALTERS:
            made.append(Statement(place=Place.CONTROL, sql=_file("alter_partitions", the_role=maker)))
        if self.job == _ARCHIVES:
            made.append(Statement(place=Place.CONTROL, sql=_file("read_partitions", the_role=reader)))
        if self.job in (_ALTERS, _ARCHIVES):
            handed_on = _file("hand_on_partitions", the_maker=maker, the_role=reader)
            made.append(Statement(place=Place.CONTROL, sql=handed_on))
        return made


def quoted(name: str) -> str:
    """Return a name as PostgreSQL reads it.

    :raises UsageError: when PostgreSQL would cut it, or it would end the text that it stands in.
    """
    if not name.isprintable() or "$" in name or not 1 <= len(name.encode()) <= _LONGEST_NAME_BYTES:
        raise UsageError(
            f"{name!r} is no name for a role or schema here: 1 to {_LONGEST_NAME_BYTES} bytes that can be printed, "
            "without a dollar sign"
        )
    return '"' + name.replace('"', '""') + '"'


def psql_script(roles: Sequence[PostgresRole], *, prefix: str = DEFAULT_PREFIX, sessions_schema: str = "public") -> str:
    """Return a file for psql that makes roles: all of it or nothing; what is about an absent place is left out."""
    messages = _text(f"{quoted(sessions_schema)}.{quoted(MESSAGES)}")
    facts = ", ".join(
        f"to_regclass({name}) IS NOT NULL AS has_{place}"
        for place, name in zip(Place, ("'queuekeeper.audit'", messages, "'pgmb.events'"), strict=True)
    )
    warning = "there is no schema queuekeeper: run queuekeeper database migrate"
    parts = [
        "\\set ON_ERROR_STOP on",
        f"SELECT {facts} \\gset",
        f"\\if :has_{Place.CONTROL}\n\\else\n\\warn '{warning}'\n\\quit\n\\endif",
        "BEGIN;",
    ]
    # A role is named by grants of others, so all are made first.
    found = [(role, role.statements(prefix=prefix, sessions_schema=sessions_schema)) for role in roles]
    parts += [f"{each.sql};" for _, made in found for each in made if each.place is None]
    for role, made in found:
        parts.append(f"-- {role.job}: {role.purpose}")
        for place in Place:
            text = "\n".join(f"{each.sql};" for each in made if each.place is place)
            parts.append(f"\\if :has_{place}\n{text}\n\\endif")
    return "\n".join([*parts, "COMMIT;"]) + "\n"


def postgres_roles() -> Mapping[str, PostgresRole]:
    """Return the roles by the names of their jobs."""
    return {role.job: role for role in _roles()}


def postgres_role(job: str) -> PostgresRole:
    """Return the role of a job.

    :raises UsageError: naming the jobs that there are.
    """
    return of_job(postgres_roles(), job)


# --- the jobs ------------------------------------------------------------------------------------------------------

_READ = ("SELECT",)
_ADD = ("INSERT",)
_KEEP = ("SELECT", "INSERT", "UPDATE", "DELETE")
_RUN = ("EXECUTE",)
_ALTERS, _ARCHIVES = "partitions", "archive"

_PLANS = (
    "plans", "plan_runs", "cohorts", "progress", "throughput", "copy_reports", "ledger", "differences",
    "difference_counts", "quarantine", "reports",
)  # fmt: skip
_SESSION_STATES = ("session_states", "session_sources", "session_quarantine")
_ONLINE = ("online_cohorts", "online_control", "session_owners")
_QUALITY = (
    "profiles", "queue_profiles", "cohort_profiles", "expiry_hours", "quality_runs", "quality_results", "known_issues",
    "incidents", "compacted_profiles", "fanout_profiles",
)  # fmt: skip
_STEERED = ("runs", "run_progress")
_PACED = ("rate_buckets",)
_RUNS = ("maintenance_runs", "maintenance_progress", *_STEERED)
_PARTITIONS = ("partition_policies", "partition_observations", "retired_partitions")
_LEDGER = ("schema_migrations",)
# Rows that wait for repair hold a message whole; all else about them is no content.
_QUARANTINE_FACTS = (
    "quarantine_id", "plan_id", "cohort", "kind", "reason", "detail", "client_id", "serial_number", "time", "packet_id",
    "packet_type", "qos", "msg_expiry_interval", "last_packet_id", "status", "assigned_packet_id", "replayed_at",
    "quarantined_at",
)  # fmt: skip
_SESSION_QUARANTINE_FACTS = (
    "quarantine_id", "reason", "client_id", "serial_number", "time", "packet_id", "packet_type", "qos",
    "msg_expiry_interval", "quarantined_at", "status", "assigned_serial_number", "assigned_packet_id", "replayed_at",
    "replayed_by",
)  # fmt: skip
_MESSAGE_FACTS = (
    "client_id", "serial_number", "time", "packet_id", "packet_type", "qos", "msg_expiry_interval",
)  # fmt: skip
_EVENT_FACTS = ("id", "topic", "subscription_id", "transaction_id")
_CONDITION_FACTS = ("id", "group_id", "conditions_sql", "condition_key", "last_active_at", "expiry_interval",
                    "quarantined_at")  # fmt: skip
_QUARANTINE = ("quarantined_at", "quarantine_reason", "quarantine_dispatch_id")
_READING = (
    "get_config_value", "extract_date_from_event_id", "pending_events", "partition_bounds", "add_interval_imm",
    "create_event_id",
)  # fmt: skip


def _control(names: Iterable[str], privileges: tuple[str, ...], *columns: str) -> Grant:
    return Grant(place=Place.CONTROL, privileges=privileges, names=tuple(names), columns=columns)


def _vendor(privileges: tuple[str, ...], *names: str, columns: tuple[str, ...] = ()) -> Grant:
    return Grant(place=Place.SESSIONS, privileges=privileges, names=names or tuple(SOURCE_TABLES), columns=columns)


def _events(privileges: tuple[str, ...], *names: str, columns: tuple[str, ...] = ()) -> Grant:
    return Grant(place=Place.EVENTS, privileges=privileges, names=names, columns=columns)


def _calls(*names: str) -> Grant:
    return Grant(place=Place.EVENTS, privileges=_RUN, names=names, kind="ROUTINE")


_AUDITED = _control(("audit", "audit_answers", "audit_runs"), _ADD)
_KNOWN = _control(_LEDGER, _READ)
_NUMBERS = Grant(place=Place.EVENTS, privileges=("USAGE",), names=("event_numbers",), kind="SEQUENCE")


def _roles() -> tuple[PostgresRole, ...]:
    return (
        PostgresRole(
            job="source",
            purpose="reads sessions in PostgreSQL, and writes nothing: inspections, a rehearsal's dump",
            grants=(_vendor(_READ), _control(_SESSION_STATES, _READ), _KNOWN),
            reads_payloads=True,
        ),
        PostgresRole(
            job="migration",
            purpose="session_migration and session_rollback while the broker is stopped",
            grants=(
                _vendor(_READ),
                _control((*_PLANS, *_STEERED, *_PACED), _KEEP),
                _control(("session_owners", "online_cohorts"), _READ),
                _AUDITED,
                _KNOWN,
            ),
            reads_payloads=True,
        ),
        PostgresRole(
            job="online",
            purpose="the driver of a migration with devices connected; the table's owner installs its triggers",
            grants=(
                _vendor(_KEEP),
                _control((*_PLANS, *_SESSION_STATES, *_ONLINE, *_STEERED, *_PACED), _KEEP),
                Grant(place=Place.CONTROL, privileges=("USAGE",), names=("online_drivers",), kind="SEQUENCE"),
                _AUDITED,
                _KNOWN,
            ),
            reads_payloads=True,
        ),
        PostgresRole(
            job="sessions",
            purpose="the broker's store of persistent sessions in PostgreSQL, and queuekeeper sessions",
            grants=(_vendor(_KEEP), _control(_SESSION_STATES, _KEEP), _KNOWN),
            reads_payloads=True,
        ),
        PostgresRole(
            job="quality",
            purpose="queue_quality: facts, sizes and instants of messages and events; it cannot read a payload",
            grants=(
                _vendor(_READ, MESSAGES, columns=_MESSAGE_FACTS),
                _vendor(_READ, SESSIONS),
                _control((*_QUALITY, *_PACED), _KEEP),
                _control((*_LEDGER, *_PARTITIONS, *_RUNS, "session_states", "plans", "ledger"), _READ),
                _control(("quarantine",), _READ, *_QUARANTINE_FACTS),
                _control(("session_quarantine",), _READ, *_SESSION_QUARANTINE_FACTS),
                _AUDITED,
                _events(_READ, "events", columns=_EVENT_FACTS),
                _events(_READ, "subscriptions", columns=_CONDITION_FACTS),
                _events(
                    _READ,
                    "config",
                    "dispatch_state",
                    "dispatches",
                    "due_events",
                    "subscription_events",
                    "subscription_groups",
                ),
                _calls(*_READING, "condition_fails", "retention_limit"),
            ),
            told_sizes=True,
            reads_keys=True,
        ),
        PostgresRole(
            job="maintenance",
            purpose="records of runs that mend Redis: cleanup, repair, collection, fan-out; serials of the source",
            grants=(
                _vendor(_READ, MESSAGES, columns=("client_id", "serial_number", "packet_id")),
                _control((*_RUNS, *_PACED), _KEEP),
                _control((*_QUALITY, *_LEDGER), _READ),
                _AUDITED,
            ),
        ),
        PostgresRole(
            job="publisher",
            purpose="publishes events",
            grants=(
                _events(_ADD, "events", "scheduled_events"),
                _events(_READ, "events", "subscriptions", columns=("id",)),
                _NUMBERS,
                _calls("publish", "schedule_event", "create_event_id", "create_random_bigint"),
            ),
        ),
        PostgresRole(
            job="consumer",
            purpose="subscribes to events, handles them, and sends to subscriptions of its own",
            grants=(
                _events(_READ, "config", "events", "dispatches", "subscription_events"),
                _events(("SELECT", "INSERT", "UPDATE"), "subscription_groups", "dead_letters"),
                _events(("SELECT", "INSERT", "DELETE"), "subscriptions"),
                _events(("UPDATE",), "subscriptions", columns=("last_active_at", "expiry_interval")),
                _events(_ADD, "scheduled_events"),
                _NUMBERS,
                _calls(
                    "get_config_value",
                    "create_group_cursor",
                    "create_subscription_id",
                    "add_interval_imm",
                    "read_next_events",
                    "pending_events",
                    "holds_group_lock",
                    "group_lock_key",
                    "check_cursor",
                    "set_group_cursor",
                    "release_group_lock",
                    "read_events",
                    "replay_events",
                    "create_event_id",
                    "create_random_bigint",
                    "create_event_id_default",
                    "copy_events",
                    "schedule_retry",
                    "schedule_event",
                    "fail_events",
                ),
            ),
            reads_payloads=True,
        ),
        PostgresRole(
            job="dispatcher",
            purpose="queuekeeper events dispatch: has polls made, tries slow conditions and puts them into quarantine",
            grants=(
                _events(_READ, "config", "dispatch_state", "events", "subscriptions"),
                _events(("UPDATE",), "subscriptions", columns=_QUARANTINE),
                _calls(
                    "poll_for_events",
                    "get_config_value",
                    "check_condition",
                    "condition_refusal",
                    "create_event_id",
                    "event_weight",
                    "match_condition",
                    "quarantine_subscription",
                ),
            ),
            reads_payloads=True,
        ),
        PostgresRole(
            job="upkeep",
            purpose="event_upkeep: expires subscriptions, repeats what was never dispatched; it cannot read a payload",
            grants=(
                _events(_READ, "events", columns=_EVENT_FACTS),
                _events(_READ, "subscriptions", columns=_CONDITION_FACTS),
                _events(_READ, "config", "dispatch_state", "dispatches", "subscription_events", "subscription_groups"),
                _events(_READ, "dead_letters", columns=("group_id",)),
                _events(("SELECT", "INSERT"), "due_events"),
                _events(("DELETE",), "subscriptions"),
                _events(
                    ("UPDATE",),
                    "subscriptions",
                    columns=_QUARANTINE,
                ),
                _calls(
                    *_READING,
                    "condition_fails",
                    "dispatch_status",
                    "reenqueue_events",
                    "quarantine_subscription",
                ),
                _control((*_RUNS, *_PACED), _KEEP),
                _KNOWN,
                _AUDITED,
            ),
        ),
        PostgresRole(
            job=_ALTERS,
            purpose="partition_maintenance: belongs to the roles that own the tables of policies, and of the broker",
            grants=(_control((*_PARTITIONS, *_RUNS, *_PACED), _KEEP), _KNOWN, _AUDITED),
            reads_payloads=True,
        ),
        PostgresRole(
            job=_ARCHIVES,
            purpose="partition_maintenance: writes what that one has retired to files",
            grants=(_control(_PARTITIONS, _READ), _control(("retired_partitions",), ("UPDATE",)), _KNOWN, _AUDITED),
            reads_payloads=True,
        ),
        PostgresRole(
            job="audit",
            purpose="adds entries to the audit, and can neither read nor change one",
            grants=(_AUDITED,),
        ),
        PostgresRole(
            job="monitor",
            purpose="doctor, metrics, and pages without actions; it cannot read a payload",
            reads_keys=True,
            grants=(
                _vendor(_READ, MESSAGES, columns=_MESSAGE_FACTS),
                _vendor(_READ, SESSIONS),
                _control(
                    (
                        *(each for each in _PLANS if each != "quarantine"),
                        *_ONLINE,
                        *_QUALITY,
                        *_RUNS,
                        *_PARTITIONS,
                        *_LEDGER,
                        "session_states",
                        "audit",
                    ),
                    _READ,
                ),
                _control(("quarantine",), _READ, *_QUARANTINE_FACTS),
                _control(("session_quarantine",), _READ, *_SESSION_QUARANTINE_FACTS),
                _events(_READ, "config", "dispatch_state", "dispatches", "subscription_events", "subscription_groups"),
                _events(_READ, "events", columns=("id",)),
                _events(_READ, "dead_letters", columns=("group_id",)),
                _events(_READ, "subscriptions", columns=_CONDITION_FACTS),
                _calls(*_READING, "dispatch_status", "retention_limit"),
            ),
        ),
    )


# --- how it is written ---------------------------------------------------------------------------------------------


def _granted(grant: Grant, schema: str, role: str) -> str:
    columns = f" ({', '.join(quoted(name) for name in grant.columns)})" if grant.columns else ""
    privileges = ", ".join(f"{privilege}{columns}" for privilege in grant.privileges)
    objects = ", ".join(f"{schema}.{quoted(name)}" for name in grant.names)
    return f"GRANT {privileges} ON {grant.kind} {objects} TO {role}"


def _size_teller(schema: str, role: str) -> list[str]:
    """Return what makes the function that tells sizes, and lets a role call it."""
    table = f"{schema}.{quoted(MESSAGES)}"
    function = "queuekeeper.message_facts(tid, tid)"
    return [
        _file("message_facts").replace("public.device_publish_msg", table),
        _file("own_message_facts").replace("'public.device_publish_msg'", _text(table)),
        f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC",
        f"GRANT EXECUTE ON FUNCTION {function} TO {role}",
    ]


def _file(name: str, **roles: str) -> str:
    """Return a statement of ``sql/access`` with names of roles in the place of those that stand for them."""
    text = statement(f"access/{name}").removesuffix(";")
    for stand_in, role in roles.items():
        text = text.replace(f"'{stand_in}'", _text(role)).replace(f'"{stand_in}"', quoted(role))
    return text


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
