"""Metrics of a door for Prometheus: counts, states and durations. No metric names a client or shows a payload."""

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
    "refused": "Publishes refused because they can never be stored.",
    "untold": "Refused publishes whose refusal the broker did not let the door publish.",
    "delivered": "Messages sent to clients.",
    "acknowledged": "Messages acknowledged by clients.",
    "failed": "Deliveries that failed.",
    "redis_answers": "1 while Redis answers, else 0.",
    "stores": "1 while Redis stores what is published, else 0.",
    "unavailable": "Subscriptions refused because Redis did not answer.",
    "outages": "Outages begun: Redis does not answer, or does not store.",
}
"""Help text of each field of the report; numbers become counters, truth values become gauges."""


class DoorMetrics:
    """A door's metrics; after :meth:`open`, Prometheus reads them at ``http://HOST:PORT/metrics``."""

    def __init__(self, report: DoorReport) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(report))
        self.durations = Durations(
            append=self._observer("append", "Time from receiving a publish until Redis has stored it."),
            delivery=self._observer("delivery", "Time from fetching a message until it is written to the client."),
            ack=self._observer("ack", "Time from writing a message to the client until its PUBACK."),
        )
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def _observer(self, name: str, text: str) -> Callable[[float], None]:
        return Histogram(f"{PREFIX}{name}_seconds", text, buckets=BUCKETS_S, registry=self._registry).observe

    @property
    def port(self) -> int:
        """Port of the metrics."""
        assert self._server is not None
        return int(self._server.server_port)

    def open(self, listen: tuple[str, int]) -> None:
        """Begin to serve the metrics.

        :param listen: host and port; port 0 for a free one.
        :raises UsageError: when the address cannot be listened at.
        """
        host, port = listen
        try:
            self._server, self._thread = start_http_server(port, host, registry=self._registry)
        except (OSError, OverflowError, ValueError) as error:
            raise UsageError(f"metrics cannot be served at {host}:{port}: {error}. Choose another address") from None

    async def close(self) -> None:
        """Stop serving the metrics."""
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
