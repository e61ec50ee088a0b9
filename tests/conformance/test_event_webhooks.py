"""What a receiver of webhooks gets, blocking and asyncio, and what its answers do."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from queuekeeper.errors import RefusedError, Rejected, ServerUnavailable, UsageError
from queuekeeper.events.model import Delivery, Event, NewEvent
from queuekeeper.events.webhooks import AsyncWebhook, Webhook, WebhookRules
from tests.conformance.event_worlds import KINDS, Kind, World, until

pytestmark = pytest.mark.conformance

KEY = b"a key of thirty-two bytes or so."
SECRET = "whsec_" + base64.b64encode(KEY).decode()
NOW_MS = 1_700_000_000_999
IDS = ("pm660d02d3e796d000000064", "pm660d02d3e796d000000065")


class Receiver(ThreadingHTTPServer):
    """A web server that notes what it gets.

    :ivar statuses: of its next answers; 204 after them.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answerer)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.silent = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hooks/hidden?token=hidden"

    def bodies(self) -> list[Any]:
        return [json.loads(unpacked(headers, body)) for headers, body in self.requests]


class Answerer(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
        status = self.server.statuses.pop(0) if self.server.statuses else 204
        if status == 0:
            self.server.silent.wait(60)
            return
        self.send_response(status)
        if status == 302:
            self.send_header("location", self.server.url)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def unpacked(headers: dict[str, str], body: bytes) -> bytes:
    return gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.silent.set()
        server.shutdown()
        thread.join()


def post(kind: Kind, url: str, delivery: Delivery, rules: WebhookRules | None = None) -> None:
    """Post a delivery by a webhook of a kind."""

    async def run() -> None:
        async with AsyncWebhook(url, rules=rules, clock=lambda: NOW_MS) as webhook:
            await webhook(delivery)

    if kind == "blocking":
        with Webhook(url, rules=rules, clock=lambda: NOW_MS) as webhook:
            webhook(delivery)
    else:
        asyncio.run(run())


def delivery(payload: Any = 17) -> Delivery:
    return Delivery(
        subscription_id="su1", events=tuple(Event(id=event_id, topic="orders", payload=payload) for event_id in IDS)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_small_delivery_is_posted_as_it_is_with_a_key_of_its_ids(receiver: Receiver, kind: Kind) -> None:
    post(kind, receiver.url, delivery(), WebhookRules(headers={"X-Tenant": "7"}))
    post(kind, receiver.url, delivery())
    assert receiver.bodies()[0] == {"items": [{"id": one, "payload": 17, "topic": "orders"} for one in IDS]}
    (first, _), (second, _) = receiver.requests
    assert first["content-type"] == "application/json"
    assert first["x-tenant"] == "7"
    assert "content-encoding" not in first
    assert "webhook-signature" not in first
    assert (
        first["idempotency-key"] == second["idempotency-key"] == hashlib.sha256("".join(IDS).encode()).hexdigest()[:16]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_large_delivery_is_compressed_and_its_signature_is_of_what_is_inside(receiver: Receiver, kind: Kind) -> None:
    post(kind, receiver.url, delivery("x" * 1_024), WebhookRules(secret=SECRET))
    ((headers, body),) = receiver.requests
    assert headers["content-encoding"] == "gzip"
    assert len(body) < 1_024
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + unpacked(headers, body)
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["webhook-id"] == headers["idempotency-key"]
    assert headers["webhook-timestamp"] == "1700000000"


@pytest.mark.parametrize("status", [302, 400, 500])
@pytest.mark.parametrize("kind", KINDS)
def test_answer_that_is_no_success_is_a_failure_that_hides_the_path(
    receiver: Receiver, kind: Kind, status: int
) -> None:
    receiver.statuses = [status]
    with pytest.raises(RefusedError, match=f"webhook at 127.0.0.1 answered {status}") as failure:
        post(kind, receiver.url, delivery())
    assert "hidden" not in str(failure.value)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_receiver_that_does_not_answer_or_is_not_there_is_a_failure(receiver: Receiver, kind: Kind) -> None:
    receiver.statuses = [0]
    with pytest.raises(ServerUnavailable, match="cannot be reached: ReadTimeout") as failure:
        post(kind, receiver.url, delivery(), WebhookRules(timeout_s=0.2))
    assert "hidden" not in str(failure.value)
    with pytest.raises(ServerUnavailable, match="cannot be reached: ConnectError"):
        post(kind, "http://127.0.0.1:1/", delivery())


@pytest.mark.parametrize("kind", KINDS)
def test_receiver_gets_an_event_again_after_a_failure_and_makes_it_a_dead_letter_by_422(
    broker_url: str, receiver: Receiver, kind: Kind
) -> None:
    async def run() -> None:
        async with World(kind, broker_url) as world:
            blocking, awaitable = Webhook(receiver.url), AsyncWebhook(receiver.url)

            async def hook(found: Delivery) -> None:
                await (asyncio.to_thread(blocking, found) if kind == "blocking" else awaitable(found))

            receiver.statuses = [500, 204, 422]
            consumer = world.consumer()
            await consumer.handle(hook, name="hook", retries_s=(0.1,))
            with blocking:
                async with awaitable, world.dispatching(poll_interval_s=0.1), consumer:
                    await world.broker.publish([NewEvent(topic="orders", payload=1)])
                    await until(lambda: len(receiver.requests) == 2, what="the retry")
                    await world.broker.publish([NewEvent(topic="orders", payload=2)])
                    await until(
                        lambda: world.rows("SELECT count(*) FROM pgmb.dead_letters") == [(1,)], what="the dead letter"
                    )
            assert [item["payload"] for body in receiver.bodies() for item in body["items"]] == [1, 1, 2]
            keys = [headers["idempotency-key"] for headers, _ in receiver.requests]
            assert keys[0] == keys[1] != keys[2]
            (letter,) = await world.broker.dead_letters()
            assert letter.attempts == 1
            assert letter.reason == "Rejected: webhook at 127.0.0.1 answered 422: it will never take these events"

    asyncio.run(run())


def test_rejection_is_an_error_of_its_own(receiver: Receiver) -> None:
    receiver.statuses = [422]
    with pytest.raises(Rejected):
        post("blocking", receiver.url, delivery())


@pytest.mark.parametrize("url", ["", "127.0.0.1", "ftp://host/", "http://", "http://host:hidden/"])
def test_address_that_is_none_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(UsageError, match="must look like https://host/path"):
        Webhook(url)


@pytest.mark.parametrize("secret", ["", "whsec_", "hidden!", "whsec_hidden!"])
def test_secret_that_is_none_is_refused_and_none_is_shown(secret: str) -> None:
    with pytest.raises(UsageError, match="must be base64") as refusal:
        WebhookRules(secret=secret)
    assert "hidden" not in str(refusal.value)
    assert SECRET not in repr(WebhookRules(secret=SECRET))
