"""What compacted queues refuse, and that they say why; no server is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from queuekeeper.compacted import forms
from queuekeeper.compacted.model import Append, Fence, Position, Purge, QueueRules, Retention
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.errors import InvalidPolicy, PayloadTooLarge, QueuekeeperError, UsageError

pytestmark = pytest.mark.unit

C = "meter-7"
FENCE = Fence(incarnation=1, epoch=1)


def entries(count: int) -> list[Append]:
    return [Append(key=b"%d" % number) for number in range(count)]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda q: q.append("", entries(1)), UsageError, "client id is empty"),
        (lambda q: q.append(7, entries(1)), UsageError, "client id is 7: it must be text"),
        (lambda q: q.append("i" * 65_536, entries(1)), UsageError, "client id has 65536 bytes"),
        (lambda q: q.append("\ud800", entries(1)), UsageError, "surrogate"),
        (lambda q: q.append(C, []), UsageError, "0 entries"),
        (lambda q: q.append(C, entries(5_001)), UsageError, "5001 entries"),
        (lambda q: q.append(C, [b"x"]), UsageError, "an entry is a bytes"),
        (lambda q: q.append(C, [Append(key=b"a", value=bytes(1_048_577))]), PayloadTooLarge, "1048577 bytes"),
        (lambda q: q.append(C, entries(1), producer="p"), UsageError, "go together"),
        (lambda q: q.append(C, entries(1), producer="", number=1), UsageError, "producer is empty"),
        (lambda q: q.append(C, entries(1), producer="p\0x", number=1), UsageError, "zero character"),
        (lambda q: q.append(C, entries(1), producer="p", number=-1), UsageError, "number is -1"),
        (lambda q: q.subscribe(C, session=""), UsageError, "session is empty"),
        (lambda q: q.subscribe(C, session="s", lease_ms=0), UsageError, "lease_ms is 0"),
        (lambda q: q.subscribe(C, session="s", start="earliest"), UsageError, "must be a Position"),
        (lambda q: q.fetch(C, fence=FENCE, limit=6, window=5), UsageError, "limit is 6"),
        (lambda q: q.fetch(C, fence=FENCE, limit=0), UsageError, "limit is 0"),
        (lambda q: q.fetch(C, fence=FENCE, window=501), UsageError, "window is 501"),
        (lambda q: q.fetch(C, fence=FENCE, refill="often"), InvalidPolicy, "on_empty, sliding"),
        (lambda q: q.fetch(C, fence=FENCE, max_bytes=0), UsageError, "max_bytes is 0"),
        (lambda q: q.fetch(C, fence=(1, 1)), UsageError, "must be the fence of a subscription"),
        (lambda q: q.ack(C, fence=FENCE, sequences=[]), UsageError, "0 numbers"),
        (lambda q: q.ack(C, fence=FENCE, sequences=["1"]), UsageError, "must be an integer"),
        (lambda q: q.get(C, key="text"), UsageError, "key is a str"),
        (lambda q: q.peek(C, limit=501), UsageError, "limit is 501"),
        (lambda q: q.purge(C, what="all"), UsageError, "must be a Purge"),
        (lambda q: q.configure(C, retention="delete"), UsageError, "must be a Retention"),
        (lambda q: q.find_due(C, retention=Retention(), limit=0), UsageError, "limit is 0"),
        (lambda q: q.find_due(C, retention=Retention(), now_ms=-1), UsageError, "now_ms is -1"),
        (lambda q: q.await_wake("", timeout_s=1), UsageError, "client id is empty"),
        (lambda q: Append(key="a"), UsageError, "key is a str: it must be bytes"),  # type: ignore[arg-type]
        (lambda q: Append(key=bytes(65_536)), UsageError, "key has 65536 bytes"),
        (lambda q: Append(key=b"a", value="v"), UsageError, "value is a str"),  # type: ignore[arg-type]
        (lambda q: Append(key=b"a", value=b"v", tombstone=True), UsageError, "a deleted key has none"),
        (lambda q: Append(key=b"a", properties={"a": 1}), UsageError, "property value is 1"),  # type: ignore[dict-item]
        (lambda q: Append(key=b"a", properties=[]), UsageError, "properties is a list"),  # type: ignore[arg-type]
        (lambda q: Append(key=b"a", expected_sequence=-1), UsageError, "expected_sequence is -1"),
        (lambda q: Append(key=b"a", published_ms=True), UsageError, "published_ms is True"),
        (lambda q: Retention(retention_ms=-1), UsageError, "retention_ms is -1"),
        (lambda q: Retention(policy="age"), InvalidPolicy, "delete, acked_only, compact"),  # type: ignore[arg-type]
        (lambda q: QueueRules(max_keys=-1), UsageError, "max_keys is -1"),
        (lambda q: QueueRules(when_full="explode"), InvalidPolicy, "reject, drop_oldest"),  # type: ignore[arg-type]
        (lambda q: Position.sequence(-1), UsageError, "position sequence is -1"),
        (lambda q: Position(kind="middle"), UsageError, "earliest, latest, sequence, time_ms"),
        (lambda q: Purge(kind="some"), UsageError, "all, acked, up_to"),
        (lambda q: Purge.up_to(0), UsageError, "up to is 0"),
    ],
)
def test_bad_input_is_refused_by_name(call: Callable[[Any], object], error: type[QueuekeeperError], words: str) -> None:
    # A client that is never connected: with a server on that port, too, nothing would be sent.
    with redis.Redis() as client, pytest.raises(error, match=words):
        call(CompactedQueues(client))


def test_prefix_may_hold_no_brace() -> None:
    with redis.Redis() as client, pytest.raises(UsageError, match="brace"):
        CompactedQueues(client, "{x}")


@pytest.mark.parametrize("read", [forms.position, forms.purge])
@pytest.mark.parametrize("text", ["9" * 17, "9" * 5_000, "9007199254740993"])
def test_number_beyond_all_is_refused_in_few_words(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read(text)
    assert len(str(refusal.value)) < 300
