"""Summarises a plan for the person who approves it, without client ids and payloads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import humanize

from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.migration.ledger.parameters import BadRows, MigrationParameters, Mode
from queuekeeper.migration.servers import server_warnings
from queuekeeper.redis_client import ServerFacts
from queuekeeper.report.figures import number, size, words
from queuekeeper.sessions.judge import Reason
from queuekeeper.sessions.model import OWNER_WORDS

_QUARANTINED = {
    (Mode.OFFLINE, BadRows.QUARANTINE): "kept in PostgreSQL for repair",
    (
        Mode.ONLINE,
        BadRows.QUARANTINE,
    ): "moved to queuekeeper.session_quarantine for repair; their clients move",
    (Mode.ONLINE, BadRows.LEAVE): "left as they are; their clients stay in PostgreSQL until the rows are corrected",
}
_SCATTERED = {
    BadRows.QUARANTINE: " (no cluster can hold such a client: PostgreSQL serves it until the commit, which moves its "
    "messages to queuekeeper.session_quarantine)",
    BadRows.LEAVE: " (no cluster can hold such a client: it stays in PostgreSQL)",
}


def _put_aside(parameters: MigrationParameters) -> str:
    if parameters.inside_redis:
        return "put aside in Redis, as by a fetch; their clients move"
    return _QUARANTINED[parameters.mode, parameters.bad_rows]


def summarise(plan: MigrationPlan, servers: Sequence[ServerFacts]) -> str:
    """Return the summary of a plan as Markdown.

    :param servers: masters to which the plan will copy.
    """
    told = plan.facts()
    reasons: dict[str, int] = told["quarantined_by_reason"]
    used = sum(server.used_memory_bytes for server in servers)
    limits = [server.maxmemory_bytes for server in servers]
    parameters = plan.parameters
    limit = f" of {size(sum(limits))}" if limits and all(limits) else ", no limit set"
    as_of = datetime.fromtimestamp(plan.as_of_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    throttle = parameters.throttle_messages_per_s
    default_expiry = f"{humanize.precisedelta(parameters.default_ttl_s)} after their own time if the publisher set none"
    rows = [
        ("Plan", f"`{plan.plan_id}`, as of {as_of}"),
        ("From and to", f"{OWNER_WORDS[parameters.source_owner]} to {OWNER_WORDS[parameters.target_owner]}"),
        ("Cohorts", f"{number(len(plan.chosen))} of {number(len(plan.cohorts))}"),
        ("Sessions", number(told["sessions"])),
        ("Clients with messages", f"{number(told['clients'])}, longest queue {number(told['longest_queue'])}"),
        ("Messages", f"{number(told['messages'])}, payloads {size(told['payload_bytes'])}"),
        ("**To copy**", f"**{number(told['to_copy'])}**"),
        ("Expired", f"{number(told['expired'])} (not copied; {default_expiry})"),
        ("Trimmed", f"{number(told['trimmed'])} (not copied: beyond {number(parameters.limit)} per session)"),
        ("Quarantined", f"{number(told['quarantined'])} ({_put_aside(parameters)})"),
        ("Redis memory", f"{size(told['forecast_bytes'])} forecast, {size(used)} in use{limit}"),
        ("Throttle", "none" if throttle is None else f"{number(throttle)} messages/s"),
    ]
    lines = ["| What | Planned |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)]
    if reasons:
        lines += ["", "Quarantined rows by reason, messages and sessions:", ""]
        scattered = _SCATTERED[parameters.bad_rows] if parameters.mode is Mode.ONLINE else ""
        lines += [
            f"- {words(reason)}: {number(count)}{scattered if reason == Reason.CLIENT_ID_SCATTERED else ''}"
            for reason, count in reasons.items()
        ]
    warnings = [warning for server in servers for warning in server_warnings(server)]
    if warnings:
        lines += ["", "Before you agree:", "", *(f"- {warning}" for warning in warnings)]
    return "\n".join(lines)
