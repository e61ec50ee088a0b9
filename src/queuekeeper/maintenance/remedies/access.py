"""Checks servers and user before a remedy begins; which commands it needs follows from the scripts that it runs."""

from __future__ import annotations

from queuekeeper import lua
from queuekeeper.errors import RefusedError
from queuekeeper.maintenance.remedies.model import Remedy
from queuekeeper.redis_client import RedisClient, address_of, facts, unfit

_LOOKING = ("read_session", "list_references", "judge_messages")
_GROUNDWORK = ("evalsha", "script|load", "scan", "info", "time", "command", "cluster|slots", "client|setname")
_WITHOUT_KEY = frozenset({"time"})


def commands_of(*scripts: str, counts_only: bool = False) -> list[str]:
    """Return the commands that scripts of sessions call on keys.

    :param counts_only: those of the scripts' forms that only count.
    """
    called = (lua.commands_called(lua.load(f"sessions/{name}"), counts_only=counts_only) for name in scripts)
    return sorted(frozenset().union(*called) - _WITHOUT_KEY)


def check_access(client: RedisClient, remedy: Remedy, *, key_prefix: str, writing: bool) -> None:
    """Check that servers are new enough and the user may do what a remedy does.

    :param writing: whether more than counting is wanted.
    :raises RefusedError: naming the commands that are refused, and the rules that allow them.
    """
    problems = [problem for server in facts(client) for problem in unfit(server)]
    if problems:
        raise RefusedError("; ".join(problems))
    scripts = (*_LOOKING, *remedy.looks_by, *remedy.writes_by)
    # Who may write may count as well.
    commands = sorted({*commands_of(*scripts, counts_only=True), *(commands_of(*scripts) if writing else ())})
    key = f"{key_prefix}{{queuekeeper}}_messages"
    refused = lua.ScriptCaller(client).call(lua.load("maintenance/refused_commands"), [key], commands)
    if refused:
        names = ", ".join(name.decode() for name in refused)
        rules = " ".join(f"+{command}" for command in (*_GROUNDWORK, *commands))
        raise RefusedError(
            f"Redis at {address_of(client)} does not allow this user {names} on keys such as {key}: "
            f"ACL SETUSER <user> ~{key_prefix}{{*}}_* {rules}"
        )
