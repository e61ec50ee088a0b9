"""Queues that look odd and are healthy, and healthy queues by the million."""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

from queuekeeper.keyspace import MAX_PACKET_ID, session_keys
from tests.golden_defects.stage import LIMIT, Queue, message, messages

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MESSAGES_PER_SESSION = 50
_BLOCK = 1_000


def _waits(queue: Queue) -> None:
    queue.save(*messages(3))
    queue.save(message(life_s=86_400), message(qos=2))


def _is_full(queue: Queue) -> None:
    queue.save(*messages(LIMIT + 3))


def _wraps(queue: Queue) -> None:
    queue.have_given_out(MAX_PACKET_ID - 2)
    queue.save(*messages(4))


def _newest_is_confirmed_first(queue: Queue) -> None:
    # The next message takes the place of the one that is gone, and a packet id of its own.
    queue.save(*messages(3))
    queue.acknowledge(3)
    queue.save(message())


def _some_are_confirmed(queue: Queue) -> None:
    queue.save(*messages(6))
    queue.acknowledge(2, 3, 5)


def _hands_packet_ids_out(queue: Queue) -> None:
    queue.save(*messages(2))
    queue.hand_out(5, meanwhile=lambda: None)
    queue.save(message())


def _is_emptied_and_filled(queue: Queue) -> None:
    queue.save(*messages(3))
    queue.acknowledge(1, 2, 3)
    queue.save(*messages(2))


def _was_emptied_after_a_wrap(queue: Queue) -> None:
    queue.have_given_out(MAX_PACKET_ID - 1)
    queue.save(*messages(3))
    queue.acknowledge(MAX_PACKET_ID, 1, 2)
    queue.save(message())


NEIGHBOURS: dict[str, Callable[[Queue], None]] = {
    "waits": _waits,
    "full": _is_full,
    "wraps": _wraps,
    "newest-first": _newest_is_confirmed_first,
    "gaps": _some_are_confirmed,
    "handed-out": _hands_packet_ids_out,
    "refilled": _is_emptied_and_filled,
    "wrap-refilled": _was_emptied_after_a_wrap,
}
"""What befalls queues that stay healthy, whichever broker they belong to."""


def fill(client: Any, *, messages: int, now_ms: int, seed: int = 1) -> int:
    """Fill a single empty server with healthy sessions, half as our stores keep them and half as TBMQ does.

    Commands go out as bytes and unanswered: a million messages take seconds. The caller counts what has arrived.

    :returns: how many sessions were made.
    """
    sessions = max(1, messages // MESSAGES_PER_SESSION)
    connection = client.connection_pool.get_connection()
    connection.send_packed_command([_command("CLIENT", "REPLY", "OFF")])
    block: list[bytes] = []
    for session in range(sessions):
        count = messages // sessions + (session < messages % sessions)
        block += _session(f"healthy-{session:06d}", count, now_ms=now_ms, rng=random.Random(f"{seed}-{session}"))
        if len(block) > _BLOCK:
            connection.send_packed_command([b"".join(block)])
            block.clear()
    block.append(_command("CLIENT", "REPLY", "ON"))
    connection.send_packed_command([b"".join(block)])
    # The answer to this one is the first: everything before it was done.
    assert connection.read_response() == b"OK"
    client.connection_pool.release(connection)
    return sessions


def _session(client_id: str, count: int, *, now_ms: int, rng: random.Random) -> Iterator[bytes]:
    """Yield the commands that make one session."""
    ours = rng.random() < 0.5
    keys = session_keys(client_id)
    first = rng.randrange(MAX_PACKET_ID - 20, MAX_PACKET_ID) if rng.random() < 0.1 else rng.randrange(60_000)
    serial = rng.randrange(1_000_000) if ours else first
    packet_id = first
    gaps = rng.random() < 0.05
    references: list[str | int] = []
    until = 0
    for number in range(count):
        # Some clients confirm out of order.
        step = rng.randrange(1, 5) if gaps else 1
        serial += step
        packet_id = (packet_id + step - 1) % MAX_PACKET_ID + 1
        time_ms = now_ms - 2 * DAY_MS + number * (DAY_MS // count) + rng.randrange(1_000)
        life_s = rng.choice((None, None, 259_200, 604_800, 2**31 - 1))
        expires_at_ms = time_ms + 1_000 * (life_s or 604_800)
        until = max(until, expires_at_ms)
        key = f"{keys.messages}_{packet_id}"
        references += [serial, key]
        released = ours and rng.random() < 0.05
        payload = b64encode(rng.randbytes(rng.randrange(20, 120))).decode()
        expiry = f',"msgExpiryInterval":{life_s}' if life_s else ""
        record = (
            f'{{"clientId":"{client_id}","topicName":"site/{number % 7}/telemetry","time":{time_ms},'
            f'"qos":{2 if released else 1},"packetId":{packet_id},"packetType":"{"PUBREL" if released else "PUBLISH"}",'
            f'"payload":"{"" if released else payload}","retained":false{expiry}}}'
        )
        yield _command("SET", key, record, "PXAT", expires_at_ms)
    last_packet_id = packet_id % MAX_PACKET_ID + 1 if rng.random() < 0.2 else packet_id
    yield _command("ZADD", keys.messages, *references)
    yield _command("SET", keys.last_packet_id, last_packet_id)
    if ours:
        yield _command(
            "HSET", keys.session, "last_serial", serial + 1, "saved_last_packet_id", last_packet_id, "until_ms", until
        )
        for key in keys:
            yield _command("PEXPIREAT", key, until + HOUR_MS)


def _command(*words: str | int) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
