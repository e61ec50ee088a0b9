"""How the queues of a server are found and shared out among tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from queuekeeper.clock import Clock
from queuekeeper.errors import RefusedError
from queuekeeper.redis_client import RedisClient, clocks_ms, facts, unfit
from queuekeeper.redis_names import KEYS_PER_PAGE, Names


def share_names(shares: int, *, parts: int) -> list[str]:
    """Return names of shares, such as ``00-15``: ranges of so many parts altogether."""
    bounds = [parts * share // shares for share in range(shares + 1)]
    return [f"{first:02}-{last - 1:02}" for first, last in pairwise(bounds)]


def parts_of(share: str) -> range:
    """Return the parts that a share stands for."""
    first, _, last = share.partition("-")
    return range(int(first), int(last) + 1)


def check_servers(client: RedisClient) -> None:
    """Check that the servers can be worked on.

    :raises RefusedError: when one is too old, or a replica.
    """
    problems = [problem for server in facts(client) for problem in unfit(server)]
    if problems:
        raise RefusedError("; ".join(problems))


def server_clock(client: RedisClient) -> Clock:
    """Return the clock of a server, by which its queues tell the age of their messages."""
    return lambda: clocks_ms(client)[0]


def scan_names(
    client: RedisClient, pattern: str, *, of_type: str | None = None, count: Callable[[], int] = lambda: KEYS_PER_PAGE
) -> Iterator[list[str]]:
    """Yield the names of the keys that match a pattern, in pages, by the names of all keys; one may come twice.

    Names that are not UTF-8 are left out: ours are made of text.

    :param of_type: type of the keys, such as ``hash``; None means all.
    :param count: says how many keys the next page looks at.
    :raises ServerUnavailable: at the end, when some may be missing since a cluster moves slots all the time.
    """
    for page in Names(client, pattern, of_type=of_type, count=count).all_pages():
        yield [text for key in page.names if (text := text_of(key)) is not None]


def text_of(key: bytes) -> str | None:
    """Return the name of a key; none where it is no text."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
