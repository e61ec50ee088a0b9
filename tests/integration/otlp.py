"""A collector of OpenTelemetry for tests: it takes what is sent to it by OTLP over HTTP, and keeps it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class Collector:
    """What has arrived.

    :param url: where it listens.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._arrived: list[bytes] = []
        self._lock = threading.Lock()

    def take(self, body: bytes) -> None:
        """Keep one request."""
        with self._lock:
            self._arrived.append(body)

    @property
    def bodies(self) -> list[bytes]:
        """All requests, as they were sent."""
        with self._lock:
            return list(self._arrived)

    def points(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return name of a metric -> attributes and value of each point, as they arrived; of durations the sum."""
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for body in self.bodies:
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        data = getattr(metric, metric.WhichOneof("data") or "gauge")
                        found.setdefault(metric.name, []).extend(_points(data))
        return found


def _points(data: Any) -> Iterator[tuple[dict[str, str], float]]:
    for point in data.data_points:
        attributes = {each.key: each.value.string_value for each in point.attributes}
        value = point.sum if hasattr(point, "sum") else point.as_double or point.as_int
        yield attributes, float(value)


@contextmanager
def collector() -> Iterator[Collector]:
    """Listen on a port of its own until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/metrics":
                taken.take(body)
            answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Say nothing of each request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    taken = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
