"""Where the defects are acted out: a client's queue under the vendor's steps, and under our store's given the same."""

from __future__ import annotations

import itertools
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import redis
from tbmq_broker import Broker

from queuekeeper.clock import system_clock
from queuekeeper.errors import UsageError
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.redis_store import RedisSessionStore

LIMIT = 10
"""Messages that a session may hold here; small, so that a full queue is."""

DEFAULT_LIFE_S = 604_800
SHORT_LIFE_S = 1
_numbers = itertools.count(1)


def message(*, life_s: int | None = None, qos: int = 1, age_ms: int = 0) -> NewMessage:
    """Return a message like no other."""
    return NewMessage(
        topic="golden/defects",
        payload=b"message %d" % next(_numbers),
        qos=qos,
        time_ms=system_clock() - age_ms,
        expiry_interval_s=life_s,
    )


def messages(count: int, *, life_s: int | None = None, qos: int = 1) -> list[NewMessage]:
    """Return messages that are all different."""
    return [message(life_s=life_s, qos=qos) for _ in range(count)]


class Queue(Protocol):
    """What befalls the queue of one client; a defect is a sequence of these."""

    def save(self, *pack: NewMessage) -> None:
        """Store a pack; one that the store keeps refusing is given up."""

    def save_twice(self, *pack: NewMessage) -> None:
        """Store a pack whose reply is lost, and repeat it."""

    def acknowledge(self, *packet_ids: int) -> None:
        """Take PUBACK or PUBCOMP."""

    def received(self, packet_id: int) -> None:
        """Take PUBREC."""

    def have_given_out(self, packet_id: int) -> None:
        """Begin where earlier messages, all confirmed by now, have left the counter."""

    def hand_out(self, count: int, *, meanwhile: Callable[[], None]) -> None:
        """Give packet ids of this client to messages of a group's queue, while something else happens."""

    def handed_over(self) -> None:
        """Note that the messages of this group's queue were sent to a member that has not confirmed them yet."""


@dataclass(frozen=True, kw_only=True)
class VendorQueue:
    """A queue of TBMQ 2.x, whose steps ``tests/lua/tbmq_broker.py`` retells."""

    client: Any
    client_id: str

    @property
    def broker(self) -> Broker:
        return Broker(self.client, self.client_id)

    @property
    def counter(self) -> str:
        return f"{{{self.client_id}}}_last_packet_id"

    def save(self, *pack: NewMessage) -> None:
        # Each attempt would meet the same error at the same message, and change nothing more.
        with suppress(redis.ResponseError):
            self.broker.save([self._record(each) for each in pack], limit=LIMIT, default_life_s=DEFAULT_LIFE_S)

    def save_twice(self, *pack: NewMessage) -> None:
        self.save(*pack)
        self.save(*pack)

    def acknowledge(self, *packet_ids: int) -> None:
        for packet_id in packet_ids:
            self.broker.acknowledge(packet_id)

    def received(self, packet_id: int) -> None:
        self.broker.received(packet_id)

    def have_given_out(self, packet_id: int) -> None:
        self.client.set(self.counter, packet_id)

    def hand_out(self, count: int, *, meanwhile: Callable[[], None]) -> None:
        last = int(self.client.get(self.counter) or 0)
        meanwhile()
        self.client.set(self.counter, last + count)

    def handed_over(self) -> None:
        self.client.delete(self.counter)

    def _record(self, new: NewMessage) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "clientId": self.client_id,
            "topicName": new.topic,
            "time": new.time_ms,
            "qos": new.qos,
            "packetType": "PUBLISH",
            "payload": b64encode(new.payload).decode(),
            "retained": new.retain,
        }
        if new.expiry_interval_s is not None:
            # Read from four unsigned bytes into a signed number.
            fields["msgExpiryInterval"] = (new.expiry_interval_s + 2**31) % 2**32 - 2**31
        return fields


@dataclass(frozen=True, kw_only=True)
class OurQueue:
    """A queue of our Redis store."""

    client: RedisClient
    client_id: str

    @property
    def store(self) -> RedisSessionStore:
        rules = StoreRules(limit=LIMIT, default_ttl_s=DEFAULT_LIFE_S)
        return RedisSessionStore(self.client, rules=rules)

    def save(self, *pack: NewMessage) -> None:
        self._save(pack, offset=next(_numbers))

    def save_twice(self, *pack: NewMessage) -> None:
        offset = next(_numbers)
        self._save(pack, offset=offset)
        self._save(pack, offset=offset)

    def acknowledge(self, *packet_ids: int) -> None:
        self.store.ack(self.client_id, [Ack(packet_id=packet_id) for packet_id in packet_ids])

    def received(self, packet_id: int) -> None:
        self.store.mark_released(self.client_id, packet_id=packet_id)

    def have_given_out(self, packet_id: int) -> None:
        expected = self.store.get_last_packet_id(self.client_id)
        assert self.store.set_last_packet_id(self.client_id, packet_id=packet_id, expected=expected)

    def hand_out(self, count: int, *, meanwhile: Callable[[], None]) -> None:
        self.store.reserve_packet_ids(self.client_id, count=count)
        meanwhile()

    def handed_over(self) -> None:
        """Leave the counter alone: nobody may begin anew while messages wait."""

    def _save(self, pack: tuple[NewMessage, ...], *, offset: int) -> None:
        # The empty id is refused in words, before anything is written.
        with suppress(UsageError):
            [report] = self.store.save_messages(
                [SessionSave(client_id=self.client_id, messages=pack, source="broker", offset=offset)]
            )
            assert report.error is None, report.error


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Servers on which defects are acted out.

    :param queue: makes the queue of a client.
    """

    client: RedisClient
    queue: Callable[[str], Queue]

    @classmethod
    def of_the_vendor(cls, client: RedisClient) -> Stage:
        return cls(client=client, queue=lambda client_id: VendorQueue(client=client, client_id=client_id))

    @classmethod
    def of_ours(cls, client: RedisClient) -> Stage:
        return cls(client=client, queue=lambda client_id: OurQueue(client=client, client_id=client_id))
