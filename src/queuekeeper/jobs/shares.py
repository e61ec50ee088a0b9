"""Finds the queues of a server and divides them among tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from queuekeeper.clock import Clock
from queuekeeper.errors import NotAllowed, RefusedError
from queuekeeper.lua import ScriptCaller, scripts
from queuekeeper.redis_client import RedisClient, address_of, clocks_ms, facts, unfit
from queuekeeper.redis_names import KEYS_PER_PAGE, Names


def share_names(shares: int, *, parts: int) -> list[str]:
    """Return the names of shares, such as ``00-15``: ranges that together cover all parts."""
    bounds = [parts * share // shares for share in range(shares + 1)]
    return [f"{first:02}-{last - 1:02}" for first, last in pairwise(bounds)]


def parts_of(share: str) -> range:
    """Return the parts of a share."""
    first, _, last = share.partition("-")
    return range(int(first), int(last) + 1)


def check_servers(client: RedisClient) -> None:
    """Check that the servers can be worked on.

    :raises RefusedError: when one is too old, or a replica.
    """
    problems = [problem for server in facts(client) for problem in unfit(server)]
    if problems:
        raise RefusedError("; ".join(problems))


def check_rights(client: RedisClient, *, key_prefix: str, commands: Sequence[str], rules: str) -> None:
    """Check that the user may run commands on keys of sessions.

    :param rules: command that allows them, and whatever else the job needs.
    :raises NotAllowed: naming the commands that are missing, and the rules.
    """
    key = f"{key_prefix}{{queuekeeper}}_messages"
    refused = ScriptCaller(client).call(*scripts.maintenance.refused_commands(key=key, commands=commands))
    if refused:
        names = ", ".join(name.decode() for name in refused)
        raise NotAllowed(
            f"Redis at {address_of(client)} does not allow this user {names} on keys such as {key}: {rules}"
        )


def server_clock(client: RedisClient) -> Clock:
    """Return the clock of the server, by which queues measure the age of their messages."""
    return lambda: clocks_ms(client)[0]


def scan_names(
    client: RedisClient, pattern: str, *, of_type: str | None = None, count: Callable[[], int] = lambda: KEYS_PER_PAGE
) -> Iterator[list[str]]:
    """Yield pages of the names of keys that match a pattern, by SCAN; a name may come twice.

    Names that are not UTF-8 are left out, since no key of Queuekeeper has one.

    :param of_type: type of the keys, such as ``hash``; None for all.
    :param count: returns how many keys SCAN looks at for the next page.
    :raises ServerUnavailable: at the end, when names may be missing since a cluster moves slots all the time.
    """
    for page in Names(client, pattern, of_type=of_type, count=count).all_pages():
        yield [text for key in page.names if (text := text_of(key)) is not None]


def text_of(key: bytes) -> str | None:
    """Return the name of a key; none where it is not UTF-8."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
