"""Users of Redis with the least that each job needs, worked out from the scripts that it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from queuekeeper import lua
from queuekeeper.checks import of_job
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import check_prefix

PLACEHOLDER = "<password>"

_CLIENT = (
    "asking", "client|setname", "cluster|nodes", "cluster|shards", "cluster|slots", "command", "info", "ping",
    "select", "time",
)  # fmt: skip
"""What our connections say, to a server and to a cluster. That redis-py may not tell its version does no harm."""

_SCRIPTS = ("evalsha", "script|load", "wait")
_NOT_EVERYWHERE = frozenset({"hpexpireat", "hsetex"})
"""A rule that names a command which the server does not know is refused; its category is known everywhere."""

_SESSION_KEYS = ("{*}_messages*", "{*}_last_packet_id", "{*}_session")
_PACKED_KEY = "{*}_packed"
_SESSION_STORE = (
    "ack", "fetch_messages", "find_missing", "import_session", "list_references", "mark_delivered", "mark_released",
    "purge_session", "quarantine_message", "read_session", "remove_dead_references", "reserve_packet_ids",
    "save_messages", "set_last_packet_id", "set_owner", "sync_session", "trim_messages", "trim_outbox",
)  # fmt: skip
_REMEDIES = (
    "export_messages", "find_orphans", "finish_rekey", "judge_messages", "list_references", "mark_delivered",
    "quarantine_duplicate", "quarantine_message", "read_session", "rekey_messages", "remove_dead_references",
    "remove_references", "reorder_messages", "restore_message", "set_expiry", "set_last_packet_id", "trim_messages",
    "unlink_copied", "unlink_orphan",
)  # fmt: skip
_OF_REMEDIES = ("repair_state", "restore_message", "set_aside", "set_expiry")
_PACKED_REMEDIES = (
    *(f"packed/{verb}" for verb in ("read_session", "remove_expired", "trim_messages", *_OF_REMEDIES)),
    "quality/profile_packed",
)
_ONLINE = (
    "fetch_messages", "quarantine_message", "read_session", "set_last_packet_id", "set_owner", "sync_session",
    "trim_outbox",
)  # fmt: skip
_COMPACTED_UPKEEP = ("collect", "find_due", "heartbeat", "repair")
_FANOUT_UPKEEP = ("reap", "repair")


@dataclass(frozen=True, kw_only=True)
class RedisUser:
    """What one job needs of a Redis.

    :param job: name of the user, after a prefix.
    :param purpose: in a sentence.
    :param keys: patterns of the keys that it may touch, below the prefix of keys.
    :param scripts: names of the Lua files that it runs.
    :param commands: what it sends beside them.
    :param narrowed: commands that it may use on some of its keys only, with their pattern.
    :param reads_payloads: whether its commands could read the content of messages.
    """

    job: str
    purpose: str
    keys: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    narrowed: tuple[tuple[str, str], ...] = ()
    reads_payloads: bool = True

    def rules(self, *, key_prefix: str = "") -> list[str]:
        """Return the rules of ``ACL SETUSER``: keys, then commands, then what holds for other keys.

        :param key_prefix: before every key.
        :raises UsageError: when it holds a brace, or a character that patterns of keys give a meaning.
        """
        prefix = _literal(key_prefix)
        granted = {*_CLIENT, *self.commands}
        for name in self.scripts:
            script = lua.load(name)
            # Whoever does something may also ask what it would do.
            granted |= {*_SCRIPTS, *lua.commands_called(script), *lua.commands_called(script, counts_only=True)}
        if granted & _NOT_EVERYWHERE:
            granted = (granted - _NOT_EVERYWHERE) | {"@hash"}
        return [
            *(f"~{prefix}{pattern}" for pattern in self.keys),
            *(f"+{command}" for command in sorted(granted - {command for command, _ in self.narrowed})),
            *(f"(+{command} ~{prefix}{pattern})" for command, pattern in self.narrowed),
        ]

    def command(self, *, key_prefix: str = "") -> str:
        """Return the command that makes the user; the password is to be put in."""
        return " ".join(
            [
                "ACL SETUSER",
                f"queuekeeper-{self.job}",
                "reset",
                "on",
                f">{PLACEHOLDER}",
                *self.rules(key_prefix=key_prefix),
            ]
        )


def _area(area: str, *without: str) -> tuple[str, ...]:
    return tuple(
        name for name in lua.names() if name.startswith(f"{area}/") and name.removeprefix(f"{area}/") not in without
    )


def _sessions(*verbs: str) -> tuple[str, ...]:
    return tuple(f"sessions/{verb}" for verb in verbs)


def redis_users() -> Mapping[str, RedisUser]:
    """Return the users by the names of their jobs."""
    users = (
        RedisUser(
            job="sessions",
            purpose="the broker's store of persistent sessions in Redis, and queuekeeper sessions",
            keys=(*_SESSION_KEYS, "{*}_quarantined_*", _PACKED_KEY),
            scripts=(*_sessions(*_SESSION_STORE), *_area("packed", "drop_import", *_OF_REMEDIES)),
        ),
        RedisUser(
            job="migration",
            purpose="session_migration: copies, verifies, replays, takes an unused import back",
            keys=(*_SESSION_KEYS, _PACKED_KEY),
            scripts=(
                *_sessions("drop_import", "export_messages", "import_session", "replay_message"),
                "packed/drop_import",
                "packed/fetch_messages",
                "packed/import_session",
                "packed/list_messages",
                "packed/list_serials",
                "packed/read_session",
                "packed/replay_message",
            ),
            commands=("dbsize", "get", "hlen", "hmget", "memory|stats", "memory|usage", "randomkey", "zcard", "zrange"),
        ),
        RedisUser(
            job="online",
            purpose="the driver of a migration with devices connected, into Redis or from one layout to the other",
            keys=(*_SESSION_KEYS, "{*}_quarantined_*", _PACKED_KEY),
            scripts=(
                *_sessions(*_ONLINE, "list_references", "remove_dead_references"),
                *(f"packed/{verb}" for verb in (*_ONLINE, "list_serials", "remove_expired")),
            ),
            commands=("scan",),
        ),
        RedisUser(
            job="cleanup",
            purpose="expired_reference_cleanup: removes what has expired, and adds no message",
            keys=(*_SESSION_KEYS, _PACKED_KEY),
            scripts=(
                *_sessions("find_orphans", "list_references", "remove_dead_references"),
                *(f"packed/{verb}" for verb in ("list_serials", "read_session", "remove_expired")),
                *_area("maintenance", "finish_registry", "hold_registry", "rearm_queues", "restore_references"),
            ),
            commands=("exists", "hget", "hmget", "memory|usage", "mget", "scan", "type", "zscore"),
        ),
        RedisUser(
            job="repair",
            purpose="session_repair: the remedies",
            keys=("{*}_*",),
            scripts=(*_sessions(*_REMEDIES), *_PACKED_REMEDIES, "maintenance/refused_commands"),
            commands=("scan",),
        ),
        RedisUser(
            job="quality",
            purpose="queue_quality of sessions: reads references, sizes and instants, and cannot read a payload",
            keys=("{*}_*",),
            scripts=("quality/profile_messages", "quality/profile_references", "sessions/find_orphans"),
            commands=("dbsize", "hexists", "pexpiretime", "scan", "strlen", "type", "zcard", "zmscore", "zrange"),
            narrowed=(("get", "{*}_last_packet_id"),),
            reads_payloads=False,
        ),
        RedisUser(
            job="quality-packed",
            purpose="queue_quality where sessions are packed: their records, which it could read, hold the payloads",
            keys=("{*}_*",),
            scripts=(
                "quality/profile_layouts",
                "quality/profile_messages",
                "quality/profile_packed",
                "quality/profile_references",
                "sessions/find_orphans",
            ),
            commands=("dbsize", "hexists", "pexpiretime", "scan", "strlen", "type", "zcard", "zmscore", "zrange"),
            narrowed=(
                ("get", "{*}_last_packet_id"),
                *((command, _PACKED_KEY) for command in ("hget", "hlen", "hscan")),
                ("hget", "{*}_session"),
            ),
        ),
        RedisUser(
            job="compacted",
            purpose="producers and consumers of compacted queues, the MQTT door, and queuekeeper compacted",
            keys=("compacted:*",),
            scripts=_area("compacted", *_COMPACTED_UPKEEP),
            commands=("bzpopmin", "scan"),
        ),
        RedisUser(
            job="compacted-gc",
            purpose="compacted_queue_gc, and queue_quality of compacted queues",
            keys=("compacted:*",),
            scripts=(
                *_area("compacted"),
                *(f"maintenance/{name}" for name in ("finish_registry", "hold_registry", "rearm_queues")),
            ),
            commands=("scan", "type", "zrange", "zscan", "zscore", "zcard", "zcount", "hgetall", "hmget"),
        ),
        RedisUser(
            job="fanout",
            purpose="publishers and consumers of fan-out queues, and queuekeeper fanout",
            keys=("fanout:*",),
            scripts=_area("fanout", *_FANOUT_UPKEEP),
            commands=("xread", "scan"),
        ),
        RedisUser(
            job="fanout-repair",
            purpose="fanout_repair, and queue_quality of fan-out queues",
            keys=("fanout:*",),
            scripts=_area("fanout"),
            commands=("scan", "type"),
        ),
        RedisUser(
            job="monitor",
            purpose="queuekeeper doctor and queuekeeper metrics: figures of the server, no key",
            commands=("config|get", "dbsize"),
            reads_payloads=False,
        ),
    )
    return {user.job: user for user in users}


def redis_user(job: str) -> RedisUser:
    """Return the user of a job.

    :raises UsageError: naming the jobs that there are.
    """
    return of_job(redis_users(), job)


def _literal(key_prefix: str) -> str:
    prefix = check_prefix(key_prefix)
    if any(letter in "*?[]\\^()" or letter.isspace() for letter in prefix):
        raise UsageError(
            f"key prefix {prefix!r} holds a character that means something in an access rule: choose another"
        )
    return prefix
