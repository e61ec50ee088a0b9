"""Reads imported sessions out of Redis page by page, as Arrow batches; comparing them is the verification's job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from queuekeeper import lua
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.redis_client import RedisClient, address_of, clocks_ms, redis_errors

SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("cohort", pa.int32()),
        ("client_id", pa.string()),
        ("kind", pa.string()),
        ("position", pa.int32()),
        ("serial_number", pa.float64()),
        ("key_packet_id", pa.string()),
        ("json", pa.string()),
        ("expires_at_ms", pa.int64()),
        ("last_packet_id", pa.string()),
        ("plan", pa.string()),
        ("import", pa.string()),
        ("used", pa.bool_()),
        ("read_at_ms", pa.int64()),
    ]
)
"""A row per reference (``kind`` message) and one per session, whose ``position`` is the number of references."""

SPARK_SCHEMA = (
    "task int, cohort int, client_id string, kind string, position int, serial_number double, key_packet_id string, "
    "json string, expires_at_ms bigint, last_packet_id string, plan string, `import` string, used boolean, "
    "read_at_ms bigint"
)

_SESSIONS_PER_TRIP = 128
_REFERENCES_PER_PAGE = 500
_KEYS_PER_CALL = 100
# One answer should stay around this size; how many keys that is, is learnt from the answers.
_BYTES_PER_TRIP = 8_000_000
_MOST_KEYS_PER_TRIP = 2_000


@dataclass
class _Rows:
    """Columns in the making."""

    columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in SCHEMA.names})

    def add(self, **values: Any) -> None:
        for name, column in self.columns.items():
            column.append(values.get(name))

    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(self.columns, schema=SCHEMA)


class TargetReader:
    """Reads sessions as they are, dead references and all; memory is bounded by a page.

    :param prefix: put before every key.
    """

    def __init__(self, client: RedisClient, *, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._caller = lua.ScriptCaller(client)
        self._script = lua.load("sessions/export_messages")
        self._keys_per_trip = _KEYS_PER_CALL

    def read(self, clients: Mapping[str, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Yield what Redis holds of some clients.

        :param clients: client id -> (task, cohort).
        """
        names = list(clients)
        for start in range(0, len(names), _SESSIONS_PER_TRIP):
            yield from self._sessions(names[start : start + _SESSIONS_PER_TRIP], clients)

    def _sessions(self, names: list[str], clients: Mapping[str, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        commands: list[tuple[Any, ...]] = []
        for name in names:
            keys = session_keys(name, prefix=self._prefix)
            commands += [
                ("ZRANGE", keys.messages, 0, _REFERENCES_PER_PAGE - 1, "WITHSCORES"),
                ("ZCARD", keys.messages),
                ("GET", keys.last_packet_id),
                ("HMGET", keys.session, "plan", "import", "used"),
            ]
        answers = self._pipeline(commands)
        rows = _Rows()
        references: list[tuple[str, int, bytes, float]] = []
        for index, name in enumerate(names):
            page, count, last_packet_id, (plan, state, used) = answers[4 * index : 4 * index + 4]
            task, cohort = clients[name]
            rows.add(
                task=task, cohort=cohort, client_id=name, kind="session", position=count,
                last_packet_id=_text(last_packet_id), plan=_text(plan), used=used is not None,
                **{"import": _text(state)},
            )  # fmt: skip
            for page_start in range(0, max(count, 1), _REFERENCES_PER_PAGE):
                if page_start:
                    messages = session_keys(name, prefix=self._prefix).messages
                    (page,) = self._pipeline(
                        [("ZRANGE", messages, page_start, page_start + _REFERENCES_PER_PAGE - 1, "WITHSCORES")]
                    )
                references += [
                    (name, page_start + position, member, score)
                    for position, (member, score) in enumerate(_pairs(page))
                ]
                while len(references) >= (trip := self._keys_per_trip):
                    yield from self._messages(references[:trip], clients)
                    references = references[trip:]
        yield from self._messages(references, clients)
        # After the messages: whatever of them had expired when it was looked for has expired by this instant.
        rows.columns["read_at_ms"] = [max(clocks_ms(self._client))] * len(names)
        yield rows.batch()

    def _messages(
        self, references: list[tuple[str, int, bytes, float]], clients: Mapping[str, tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        if not references:
            return
        calls: list[lua.Call] = []
        start = 0
        while start < len(references):
            end = start
            # A call holds keys of one session, for they share a slot.
            while end < len(references) and end - start < _KEYS_PER_CALL and references[end][0] == references[start][0]:
                end += 1
            calls.append(lua.Call(self._script, [member for _, _, member, _ in references[start:end]]))
            start = end
        flat = [value for reply in self._caller.execute(calls).or_raise() for value in reply]
        rows = _Rows()
        size_bytes = 0
        for (name, position, member, score), json, expires_at_ms in zip(references, flat[::2], flat[1::2], strict=True):
            size_bytes += len(json)
            task, cohort = clients[name]
            stem = payload_key(name, "", prefix=self._prefix).encode()
            rows.add(
                task=task, cohort=cohort, client_id=name, kind="message", position=position, serial_number=score,
                key_packet_id=_text(member[len(stem) :]) if member.startswith(stem) else None,
                json=_text(json) if json else None, expires_at_ms=expires_at_ms,
            )  # fmt: skip
        fitting = _BYTES_PER_TRIP * len(references) // max(1, size_bytes)
        self._keys_per_trip = max(1, min(_MOST_KEYS_PER_TRIP, fitting, 4 * self._keys_per_trip))
        yield rows.batch()

    def _pipeline(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        with redis_errors(address_of(self._client)):
            pipe: Any = self._client.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            answers: list[Any] = pipe.execute()
            return answers


def _pairs(page: list[Any]) -> list[tuple[bytes, float]]:
    """Return references with their scores; redis-py answers in pairs or flat, depending on the command's options."""
    if page and not isinstance(page[0], bytes):
        return [(member, float(score)) for member, score in page]
    return [(member, float(score)) for member, score in zip(page[::2], page[1::2], strict=True)]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
