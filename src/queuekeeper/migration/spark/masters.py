"""Reads names of Spark masters: which of them the jobs run on, and where their executors are."""

from __future__ import annotations

import re
from collections.abc import Sequence

from queuekeeper import postgres, redis_client
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.hosts import is_loopback

_WITHOUT_ADDRESS = re.compile(r"local|local\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\]|local-cluster\[[\d,\s]+\]|yarn")


def check_master(master: str) -> None:
    """Refuse a master that the jobs do not run on, before anything is started.

    :raises UsageError: naming it and those that there are.
    """
    kind = master.partition("://")[0]
    if not _WITHOUT_ADDRESS.fullmatch(master) and (kind == master or kind not in ("spark", "k8s")):
        connect = "; Spark Connect keeps the driver elsewhere, and a job is the driver" if kind == "sc" else ""
        raise UsageError(
            f"jobs do not run on the Spark master {master!r}{connect}: write local[2], spark://host:7077, yarn, or "
            "k8s://https://host:6443"
        )
    addresses(master)


def is_local(master: str) -> bool:
    """Return whether the executors live inside the driver, or are its children."""
    return master.startswith("local")


def runs_here(master: str) -> bool:
    """Return whether all executors run on this machine, as far as the master's address tells."""
    places = addresses(master)
    return is_local(master) or (bool(places) and all(is_loopback(host) for host, _ in places))


def addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each master that a URL names; none for a master that is no address.

    :raises UsageError: when the URL does not parse.
    """
    kind, _, rest = master.partition("://")
    if kind not in ("spark", "k8s"):
        return []
    found = []
    for place in rest.partition("://")[2].split(",") if "://" in rest else rest.split(","):
        host, _, port = place.partition("/")[0].rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"the Spark master {master!r} does not parse: write {kind}://host:port")
        found.append((host.strip("[]"), int(port)))
    return found


def refuse_loopback(master: str, stores: Sequence[str]) -> None:
    """Refuse stores that executors on other machines cannot reach.

    :param stores: URLs. Of a Redis it is asked by which addresses a cluster's nodes name one another, since an executor
        gets these, whatever the URL says.
    :raises UsageError: naming product and host, never a password.
    :raises ServerUnavailable: when such a Redis does not answer.
    """
    for url in stores:
        product = "Redis" if _is_redis(url) else "PostgreSQL"
        host = redis_client.loopback_host(url) if _is_redis(url) else postgres.loopback_host(url)
        if host is not None:
            raise UsageError(
                f"Spark runs at {master}, and {product} is named by {host}, which every executor takes for its own "
                f"machine: name {product} by an address that all machines of Spark reach"
            )
    for url in filter(_is_redis, stores):
        with redis_client.connect(url) as client:
            own = [name for name, _ in redis_client.nodes(client) if is_loopback(name.rpartition(":")[0])]
        if own:
            raise UsageError(
                f"Spark runs at {master}, and a node of the Redis cluster is announced as {own[0]}, which every "
                "executor takes for its own machine: set cluster-announce-ip of each node to an address that all "
                "machines of Spark reach"
            )


def unreached(stores: Sequence[str]) -> list[str]:
    """Return why stores cannot be used from this machine, each with what helps; none when they all can."""
    problems = []
    for url in stores:
        try:
            if _is_redis(url):
                with redis_client.connect(url) as client:
                    redis_client.clocks_ms(client)
            else:
                postgres.connect(url).close()
        except RefusedError as error:
            problems.append(str(error))
    return problems


def _is_redis(url: str) -> bool:
    return url.startswith(("redis", "unix"))
