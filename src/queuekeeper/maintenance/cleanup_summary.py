"""A cleanup in a few lines, for the person who approves it or reads what was done; no client id among them."""

from __future__ import annotations

from queuekeeper.maintenance.cleanup_model import CleanupCounts, CleanupPlan
from queuekeeper.report.figures import instant, number, size


def plan_rows(plan: CleanupPlan) -> list[tuple[str, str]]:
    """Return what a plan says, as names and texts."""
    parameters = plan.parameters
    throttle = parameters.max_operations_per_s
    return [
        ("As of", instant(plan.as_of_ms)),
        ("Shards", ", ".join(each.shard for each in plan.shards)),
        *count_rows(plan.counts),
        (
            "Worst queues",
            ", ".join(
                f"{each.client_hash or 'a queue'}: {number(each.dead)} of {number(each.references)} dead"
                for each in plan.worst[:3]
            )
            or "none",
        ),
        ("Throttle", "none" if throttle is None else f"{number(throttle)} operations/s"),
        ("Live messages that may be touched", "0: every script looks again when it writes"),
        (
            "Way back",
            "dead references and expiries can be taken back from the undo file; messages that are removed cannot",
        ),
    ]


def count_rows(counts: CleanupCounts) -> list[tuple[str, str]]:
    """Return counts as names and texts: what is mended first, then what is left alone."""
    left = {
        "too young to judge": counts.young_orphans,
        "unreadable": counts.unreadable,
        "foreign references": counts.foreign_references,
        "keys of another type": counts.wrong_type_keys,
        "keys that an id beginning with } scatters": counts.scattered_keys,
        "held sessions": counts.held_sessions,
    }
    return [
        (
            "Looked at",
            f"{number(counts.keys)} keys, {number(counts.sessions)} queues, {number(counts.references)} references",
        ),
        (
            "Dead references",
            f"{number(counts.dead_references)}, crowding out live messages in {number(counts.crowded_queues)} queues",
        ),
        ("Messages without reference", number(counts.orphans)),
        ("Messages that get an expiry", number(counts.expiries_repaired)),
        (
            "Keys of idle sessions that get an expiry",
            f"{number(counts.idle_keys)}, {number(counts.shared_subscriptions)} of abandoned shared subscriptions",
        ),
        (
            "Memory",
            f"{size(counts.freed_bytes)} at once, {size(counts.later_bytes)} when idle sessions expire (MEMORY USAGE)",
        ),
        ("Left alone", ", ".join(f"{number(count)} {what}" for what, count in left.items() if count) or "nothing"),
    ]
