"""Handlers that post deliveries to a web address.

The request is PGMB's: a JSON object of items, compressed when it is large, with an idempotency key that is the same at
every attempt. With a secret it is signed by the rules of Standard Webhooks.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import httpx

from queuekeeper.checks import check_fields, check_integer, check_seconds, checked
from queuekeeper.clock import Clock, system_clock
from queuekeeper.closing import AsyncClosing, Closing
from queuekeeper.errors import RefusedError, Rejected, ServerUnavailable, UsageError
from queuekeeper.events.model import Delivery
from queuekeeper.hosts import check_host
from queuekeeper.jsonl import json_bytes
from queuekeeper.text_form import shows

RETRIES_S = (300.0, 1_800.0)
"""Seconds before each retry, for most receivers: ``consumer.handle(webhook, retries_s=RETRIES_S, ...)``."""

SECRET_PREFIX = "whsec_"  # noqa: S105 - a mark in front of secrets
KEY_DIGITS = 16

_HEADER_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"([!-~]+([ \t]+[!-~]+)*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookRules:
    """How requests are made.

    :param timeout_s: seconds, 5 by default, that the receiver has to accept the connection, again to take each part of
        the request, and again to answer.
    :param headers: headers of every request; they replace the webhook's own headers of the same name.
    :param secret: key that signs requests, in base64, with or without ``whsec_`` in front; without one, the default,
        requests are not signed.
    :param gzip_from_bytes: size in bytes from which a body is compressed, 1,024 by default.
    :raises UsageError: when a number is out of range, the secret is not base64, or a header is not valid.
    """

    timeout_s: float = 5.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret: str | None = field(default=None, repr=False)
    gzip_from_bytes: int = 1_024

    def __post_init__(self) -> None:
        check_seconds("timeout_s", self.timeout_s)
        check_integer("gzip_from_bytes", self.gzip_from_bytes, 1, 2**30)
        check_fields(self, "secret", "headers")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise UsageError(f"{name!r} is no name of a header: it must be ASCII letters, digits and hyphens")
            if not _HEADER_VALUE.fullmatch(value):
                # The error does not show the value, which may be a secret.
                raise UsageError(f"header {name!r} must be ASCII text without line ends, and without spaces around it")
        if self.secret is not None:
            _key(self.secret)


class _Requests:
    """Makes requests and checks answers; its subclasses send the requests.

    :param url: address of the receiver; errors do not show credentials in it.
    :param rules: how requests are made; defaults when absent.
    :param clock: returns the present time in ms, for the signature.
    :raises UsageError: when the URL is not that of a web server, or its host is not a valid name.
    """

    @checked
    def __init__(self, url: str, *, rules: WebhookRules | None = None, clock: Clock = system_clock) -> None:
        self._rules = rules or WebhookRules()
        self._clock = clock
        try:
            self._url = httpx.URL(url)
        except httpx.InvalidURL:
            self._url = httpx.URL()
        if self._url.scheme not in {"http", "https"} or not self._url.host:
            raise UsageError("the address of a webhook must look like https://host/path")
        try:
            check_host(self._url.host)
        except ValueError as error:
            raise UsageError(f"the address of a webhook cannot be used: {error}") from None

    def _request(self, delivery: Delivery) -> httpx.Request:
        items = [{"id": event.id, "payload": event.payload, "topic": event.topic} for event in delivery.events]
        body = json_bytes("a payload", {"items": items}, wide_integers=True)
        key = hashlib.sha256("".join(event.id for event in delivery.events).encode()).hexdigest()[:KEY_DIGITS]
        headers = httpx.Headers({"content-type": "application/json", "idempotency-key": key})
        if self._rules.secret is not None:
            # The receiver checks the signature of the uncompressed body.
            signed_at_s = self._clock() // 1_000
            signed = hmac.digest(_key(self._rules.secret), f"{key}.{signed_at_s}.".encode() + body, "sha256")
            headers["webhook-id"] = key
            headers["webhook-timestamp"] = str(signed_at_s)
            headers["webhook-signature"] = f"v1,{base64.b64encode(signed).decode()}"
        if len(body) >= self._rules.gzip_from_bytes:
            body = gzip.compress(body, mtime=0)
            headers["content-encoding"] = "gzip"
        headers.update(self._rules.headers)
        return httpx.Request("POST", self._url, headers=headers, content=body, extensions=self._timeouts())

    def _timeouts(self) -> dict[str, dict[str, float | None]]:
        return {"timeout": httpx.Timeout(self._rules.timeout_s).as_dict()}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate errors so that they name the host alone: the path may hold a secret."""
        try:
            yield
        except UsageError as error:
            raise Rejected(f"no request to the webhook at {self._url.host} can hold these events: {error}") from None
        except httpx.TransportError as error:
            raise ServerUnavailable(
                f"webhook at {self._url.host} cannot be reached: {type(error).__name__} {error}".rstrip()
            ) from None

    def _judge(self, status: int) -> None:
        if status == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise Rejected(f"webhook at {self._url.host} answered {status}: it will never take these events")
        if not HTTPStatus(200) <= status < HTTPStatus(300):
            raise RefusedError(f"webhook at {self._url.host} answered {status}")


@shows(host="_url.host")
class Webhook(_Requests, Closing):
    """Posts deliveries, as a handler of :class:`~queuekeeper.events.consumer.EventConsumer`.

    The events become dead letters at once when the answer is 422, or when no request can hold a payload. Any other
    answer that is not 2xx, also a redirect, is a failure.
    """

    def __init__(self, url: str, *, rules: WebhookRules | None = None, clock: Clock = system_clock) -> None:
        super().__init__(url, rules=rules, clock=clock)
        self._client = httpx.Client()

    def __call__(self, delivery: Delivery) -> None:
        """Post a delivery.

        :raises Rejected: when the answer is 422, or no request can hold a payload.
        :raises RefusedError: when any other answer is not 2xx.
        :raises ServerUnavailable: when the receiver cannot be reached or is too slow.
        """
        with self._errors():
            # The body of the answer is not read.
            answer = self._client.send(self._request(delivery), stream=True)
            answer.close()
        self._judge(answer.status_code)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


@shows(host="_url.host")
class AsyncWebhook(_Requests, AsyncClosing):
    """Posts deliveries like :class:`Webhook`, for :class:`~queuekeeper.events.consumer.AsyncEventConsumer`."""

    def __init__(self, url: str, *, rules: WebhookRules | None = None, clock: Clock = system_clock) -> None:
        super().__init__(url, rules=rules, clock=clock)
        self._client = httpx.AsyncClient()

    async def __call__(self, delivery: Delivery) -> None:
        """Post a delivery, as :meth:`Webhook.__call__` does."""
        with self._errors():
            answer = await self._client.send(self._request(delivery), stream=True)
            await answer.aclose()
        self._judge(answer.status_code)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise UsageError("the secret of a webhook must be base64, with or without whsec_ in front")
    return key
