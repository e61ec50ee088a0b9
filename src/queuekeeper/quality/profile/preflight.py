"""Checks before a profile that the server is fit to be read and that the user may read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis

from queuekeeper import lua
from queuekeeper.errors import NotAllowed, RefusedError
from queuekeeper.keyspace import session_keys
from queuekeeper.lua.scripts import quality as scripts
from queuekeeper.migration.servers import check_source
from queuekeeper.postgres import Connection, address, translated_errors
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.redis_client import RedisClient, facts, nodes, redis_errors, unfit
from queuekeeper.sql_statements import statement


@dataclass(frozen=True, kw_only=True)
class _Probe:
    """A command on keys that do not exist, and the access rule that allows it."""

    command: tuple[lua.Value, ...]
    rule: str


def check_profiled(client: RedisClient, *, parameters: ProfileParameters) -> None:
    """Check that every master is fit to be read and that the user may read it.

    :raises RefusedError: when a server is too old, is a replica, or forbids a command; the message names every problem
        with its remedy, and for commands the rule for ``ACL SETUSER``.
    """
    problems = [problem for server in facts(client) for problem in unfit(server)]
    for place, node in nodes(client):
        missing = [probe.rule for probe in _probes(parameters) if not _allowed(node, place, probe)]
        if missing:
            user = _user_name(node)
            problems.append(
                f"Redis at {place} does not allow user {user} what a profile needs: "
                f"ACL SETUSER {user} {' '.join(dict.fromkeys(missing))}"
            )
    if problems:
        raise RefusedError("; ".join(problems))


def check_profiled_source(connection: Connection, *, contents: bool) -> bool:
    """Check that the user may read TBMQ's tables; return whether the user may read payloads, too.

    :param contents: whether the contents of messages are judged, which needs the right to read them.
    :raises SchemaMismatch: when the tables are not those of TBMQ 1.4.
    :raises RefusedError: when the user may not read the rows.
    """
    with translated_errors(connection):
        row = connection.execute(statement("quality/payload_rights")).fetchone()
    may_read, may_be_told = row or (False, False)
    if may_read or contents:
        check_source(connection)
        return True
    if may_be_told:
        check_source(connection, payloads=False)
    else:
        raise RefusedError(
            f"user {connection.info.user} may read neither device_publish_msg at {address(connection)} nor the sizes "
            "of its payloads: let the table's owner run what `queuekeeper acl postgres --job quality` prints"
        )
    return False


def _probes(parameters: ProfileParameters) -> list[_Probe]:
    prefix = parameters.key_prefix
    keys = session_keys("queuekeeper probe", prefix=prefix)
    payload = f"{keys.messages}_1"
    commands: list[tuple[lua.Value, ...]] = [
        ("SCAN", 0, "MATCH", f"{prefix}{{*", "COUNT", 1),
        ("TIME",),
        ("DBSIZE",),
        ("TYPE", keys.messages),
        ("ZCARD", keys.messages),
        ("ZRANGE", keys.messages, 0, 0, "WITHSCORES"),
        ("ZMSCORE", keys.messages, payload),
        ("HEXISTS", keys.session, "saved_last_packet_id"),
        ("PEXPIRETIME", payload),
        ("STRLEN", payload),
    ]
    probes = [_Probe(command=command, rule=f"+{str(command[0]).lower()}") for command in commands]
    # GET is granted for these keys only: counters are not secret, payloads may be.
    counter_rule = f"(+get ~{prefix}*_last_packet_id)"
    probes.append(_Probe(command=("GET", keys.last_packet_id), rule="+get" if parameters.contents else counter_rule))
    if parameters.contents:
        probes.append(_Probe(command=("GET", payload), rule="+get"))
    call = scripts.profile_messages(keys, payloads=[payload])
    probes.append(_Probe(command=("SCRIPT", "LOAD", call.script.source), rule="+script|load"))
    # The script refuses the extra argument before it reads anything.
    probes.append(_Probe(command=(*call.command, "refused"), rule=f"+evalsha ~{prefix}*"))
    return probes


def _allowed(node: redis.Redis, place: str, probe: _Probe) -> bool:
    try:
        with redis_errors(place):
            node.execute_command(*probe.command)  # type: ignore[no-untyped-call]
    except NotAllowed:
        return False
    except RefusedError:
        # Any other error, such as a slot on another server or a wrong argument, comes only after the permission check.
        pass
    return True


def _user_name(node: redis.Redis) -> str:
    options: dict[str, Any] = node.connection_pool.connection_kwargs
    return str(options.get("username") or "default")
