"""The user that ``queuekeeper acl`` prints for quality profiles sessions on real servers, and cannot read a payload."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planted_queues import PARAMETERS, profiled
from redis.exceptions import ResponseError

from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.quality.profile.preflight import check_profiled
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.pages import Layout
from tests.access_users import CLIENT, PREFIX, forget_refusals, holder, save, working_as

pytestmark = pytest.mark.lua


def test_profile_needs_no_look_at_payloads(client: RedisClient) -> None:
    save(client)
    parameters = replace(PARAMETERS, key_prefix=PREFIX)
    everything = profiled(client, parameters)
    assert everything[CLIENT]["messages"] == 3
    with working_as(client, "quality") as limited:
        check_profiled(limited, parameters=parameters)
        assert profiled(limited, parameters) == everything
        # What is given out next is no secret.
        assert holder(limited).get(session_keys(CLIENT, prefix=PREFIX).last_packet_id) == b"3"


def test_profile_of_a_client_in_both_layouts_needs_no_more_rights_than_documented(client: RedisClient) -> None:
    for layout in Layout:
        save(client, layout=layout)
    parameters = replace(PARAMETERS, key_prefix=PREFIX)
    assert profiled(client, parameters)[CLIENT]["in_both_layouts"] == 2
    with working_as(client, "quality-packed") as limited:
        assert profiled(limited, parameters) == profiled(client, parameters)


def test_no_command_of_the_server_tells_a_payload(single: RedisClient) -> None:
    single.flushall()
    save(single)
    payload = payload_key(CLIENT, 1, prefix=PREFIX)
    server: Any = single
    with working_as(single, "quality") as limited:
        allowed = {command for command, arity in _commands(server).items() if _allows(server, command, arity, payload)}
        # Names, types, sizes, scores and instants: of all commands of the server these, and none that tells a content.
        assert allowed - FACTS - {command for command in allowed if command.startswith("command|")} == set()
        assert {"strlen", "zrange", "scan", "evalsha"} <= allowed
        # A script gets no further than the one who runs it.
        for command in ("GET", "DUMP"):
            digest = holder(limited).script_load(f"#!lua\nreturn redis.call('{command}', KEYS[1])")
            with pytest.raises(ResponseError, match=r"(?i)permission|can't (access|run)|ACL failure"):
                holder(limited).evalsha(digest, 1, payload)
        forget_refusals(single)


FACTS = frozenset({
    "asking", "auth", "client|setname", "cluster|nodes", "cluster|shards", "cluster|slots", "dbsize", "evalsha",
    "hello", "hexists", "info", "pexpiretime", "ping", "quit", "reset", "scan", "script|load", "select", "strlen",
    "time", "type", "wait", "zcard", "zmscore", "zrange",
})  # fmt: skip
"""What tells names, types, sizes, scores and instants, and no content."""


def _commands(server: Any) -> dict[str, int]:
    """Return all commands of a server, those of families too, with their arity; redis-py has its own reply."""
    found: dict[str, int] = {}
    for name, arity, *_, subcommands in server.eval("return redis.call('COMMAND')", 0):
        found |= {each[0].decode(): each[1] for each in subcommands} if subcommands else {name.decode(): arity}
    return found


def _allows(server: Any, command: str, arity: int, key: str) -> bool:
    """Ask the server whether quality's user may run a command on a key, with as many arguments as it takes."""
    words = command.split("|")
    # Of a script a number of keys comes second.
    arguments = ["sha", "1", key] if command in _BY_SCRIPT else [key] * max(abs(arity) - len(words), 0)
    return server.execute_command("ACL DRYRUN", "queuekeeper-quality", *words, *arguments) in (b"OK", "OK")


_BY_SCRIPT = frozenset({"eval", "eval_ro", "evalsha", "evalsha_ro", "fcall", "fcall_ro"})
