"""``queuekeeper compacted serve-mqtt``: opens the MQTT door until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs, urlsplit

import typer

from queuekeeper import compacted
from queuekeeper.cli import compacted_gc, context, work
from queuekeeper.cli.command import OnRedis, command, options
from queuekeeper.cli.compacted import BOUNDS
from queuekeeper.cli.output import Shown, pairs, screen
from queuekeeper.errors import UsageError
from queuekeeper.hosts import without_password
from queuekeeper.redis_async import connect
from queuekeeper.service.aio import stopped_by_signals

if TYPE_CHECKING:
    from queuekeeper.compacted.mqtt_relay import DoorReport

app = compacted_gc.app


OF_ECQ = options(compacted.EcqSettings, "reader_batch_size", "writer_pool_size", "write_timeout_ms", "read_timeout_ms")
OF_QUEUES = {**BOUNDS, **options(compacted.QueueRules, "max_value_bytes")}


@command(app, "serve-mqtt", more={**OF_ECQ, **OF_QUEUES})
def serve_mqtt(
    call: OnRedis,
    *,
    broker_url: Annotated[str, typer.Option(envvar="QUEUEKEEPER_MQTT_URL", metavar="URL")],
    broker_ca: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT")] = "127.0.0.1:1884",
    certificate: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    private_key: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    client_id: str = "queuekeeper-compacted",
    writes: Annotated[bool, typer.Option("--writes/--no-writes")] = True,
    topic_prefix: str = "$ECQ",
    empty_is_tombstone: bool = False,
    error_after: int = 3,
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    show_config: bool = False,
    **given: Any,
) -> Shown:
    """Let MQTT clients of a broker use compacted queues.

    What they publish to $ECQ/w/CLIENT/KEY is stored. A client that connects here and subscribes to $ECQ/CLIENT/#
    gets its queue, and its PUBACKs acknowledge; all else is passed on to the broker and back.

    It serves until SIGTERM or Ctrl-C. `--show-config` prints the settings and makes no connection.

    Example: `queuekeeper compacted serve-mqtt --broker-url mqtt://door:secret@broker --listen 0.0.0.0:1884`

    :param broker_url: URL of the broker, mqtt://user:password@host:port or mqtts://... The door signs in as this user.
    :param broker_ca: File of certificates to trust for mqtts, instead of the system's.
    :param listen: Address at which clients connect.
    :param certificate: Certificate with which to serve TLS to clients. Without it, plain TCP.
    :param private_key: Key of the certificate, if it is in another file.
    :param client_id: MQTT client id of the door. Each door needs its own.
    :param writes: Whether this door stores what is published. Of several doors to one broker exactly one must.
    :param topic_prefix: First level of the topics.
    :param empty_is_tombstone: Treat an empty payload as a deletion of its key.
    :param error_after: Failed deliveries to a client in a row, without an acknowledgement, from which the log says
        ERROR instead of WARNING.
    :param metrics: Address at which to serve Prometheus metrics, such as 127.0.0.1:9464. Without it, none are served.
    :param show_config: Print the settings in force, without passwords, and exit.
    """
    from queuekeeper.compacted.mqtt import DEFAULT_WRITER_POOL_SIZE  # first of all: its extra may be missing

    context.remember(broker_url)
    settings = compacted.EcqSettings(**{name: given[name] for name in OF_ECQ})
    rules = compacted.QueueRules(**{name: given[name] for name in OF_QUEUES})
    address = compacted.BrokerAddress.parse(broker_url, ca_file=broker_ca)
    target = _patient(context.redis_address(call.redis_url), settings.read_timeout_ms)
    place = _host_and_port("--listen", listen)
    metrics_place = None if metrics is None else _host_and_port("--metrics", metrics)
    stem = call.key_prefix
    topics = compacted.Topics(prefix=topic_prefix)
    tls = _tls(certificate, private_key)
    if show_config:
        config = {
            "broker_url": without_password(broker_url), "broker": str(address), "broker_ca": broker_ca,
            "listen": listen, "certificate": certificate, "private_key": private_key, "client_id": client_id,
            "writes": writes, "topic_prefix": topics.prefix, "empty_is_tombstone": empty_is_tombstone,
            "error_after": error_after, "metrics": metrics, **given,
            "writer_pool_size": settings.writer_pool_size or DEFAULT_WRITER_POOL_SIZE,
            "key_prefix": stem, "redis_url": without_password(target),
        }  # fmt: skip
        return Shown(config, lambda: [pairs("Settings of the MQTT door", config)])
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")

    async def serve() -> DoorReport:
        told_to_end = asyncio.Event()
        with stopped_by_signals(told_to_end.set):
            async with connect(target) as caller:
                door = compacted.MqttDoor(
                    compacted.AsyncCompactedQueues(caller, prefix=stem, rules=rules),
                    address,
                    listen=place,
                    topics=topics,
                    settings=settings,
                    tls=tls,
                    client_id=client_id,
                    takes_writes=writes,
                    empty_is_tombstone=empty_is_tombstone,
                    error_after=error_after,
                    metrics=metrics_place,
                )
                async with door:
                    screen(stderr=True).print(f"Serving at {place[0]}:{door.port}; end it with Ctrl-C or SIGTERM.")
                    await told_to_end.wait()
        return door.report

    return Shown(asyncio.run(serve()), "Served")


def _host_and_port(option: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"{option} is {text!r}: write HOST:PORT, such as 127.0.0.1:1884")
    return host.strip("[]"), int(port)


def _tls(certificate: str | None, private_key: str | None) -> ssl.SSLContext | None:
    if certificate is None:
        if private_key is not None:
            raise UsageError("--private-key goes with --certificate")
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls.load_cert_chain(certificate, private_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the certificate {certificate} cannot be used: {error}") from None
    return tls


def _patient(url: str, read_timeout_ms: int) -> str:
    """Return the address of Redis with the time that it has for an answer, unless it says one itself."""
    parts = urlsplit(url)
    if "socket_timeout" in parse_qs(parts.query):
        return url
    option = f"socket_timeout={read_timeout_ms / 1_000}"
    return parts._replace(query=f"{parts.query}&{option}" if parts.query else option).geturl()


command(app, "work")(work.compacted_work)
