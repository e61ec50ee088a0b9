"""What a door counts and how long it takes, as Prometheus reads it; no client and no payload is named in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import fields
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from queuekeeper.compacted.mqtt_relay import DoorReport, Durations
from queuekeeper.errors import UsageError

PREFIX = "queuekeeper_mqtt_"
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

FIGURES = {
    "connections": "Connections of clients.",
    "appended": "Values stored.",
    "refused": "Publishes that never can be stored.",
    "untold": "Refused publishes that the broker let nobody know of.",
    "delivered": "Messages given to clients.",
    "acknowledged": "Messages that the clients confirmed.",
    "failed": "Deliveries that failed.",
    "redis_answers": "1 while Redis answers.",
    "stores": "1 while what is published can be stored.",
    "unavailable": "Subscriptions that were refused since Redis did not answer.",
    "outages": "How often Redis has begun not to answer, or not to store.",
}
"""Fields of the report, with what they say: counters, and gauges for what is true or false."""


class DoorMetrics:
    """A door's figures; once opened, they are read at ``http://HOST:PORT/metrics``."""

    def __init__(self, report: DoorReport) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(report))
        self.durations = Durations(
            append=self._observer("append", "From taking a publish from the broker until Redis has it."),
            delivery=self._observer("delivery", "From having a message until the client's connection has taken it."),
            ack=self._observer("ack", "From giving a message to a client until its PUBACK."),
        )
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def _observer(self, name: str, text: str) -> Callable[[float], None]:
        return Histogram(f"{PREFIX}{name}_seconds", text, buckets=BUCKETS_S, registry=self._registry).observe

    @property
    def port(self) -> int:
        """Where they are read."""
        assert self._server is not None
        return int(self._server.server_port)

    def open(self, listen: tuple[str, int]) -> None:
        """Let them be read.

        :param listen: host and port; port 0 for a free one.
        :raises UsageError: when it cannot listen there.
        """
        host, port = listen
        try:
            self._server, self._thread = start_http_server(port, host, registry=self._registry)
        except (OSError, OverflowError, ValueError) as error:
            raise UsageError(f"metrics cannot be served at {host}:{port}: {error}. Choose another address") from None

    async def close(self) -> None:
        """Let them be read no more."""
        if self._server is not None and self._thread is not None:
            await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()
            await asyncio.to_thread(self._thread.join)
            self._server = self._thread = None


class _Figures(Collector):
    def __init__(self, report: DoorReport) -> None:
        self._report = report

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for field in fields(self._report):
            value = getattr(self._report, field.name)
            family = GaugeMetricFamily if isinstance(value, bool) else CounterMetricFamily
            yield family(f"{PREFIX}{field.name}", FIGURES[field.name], value=value)
