"""The values of keys in an RDB file: which form has which number, and what is made of it.

Numbers and forms are those of ``src/rdb.h`` and ``src/rdb.c`` in github.com/redis/redis (types 0 to 25) and in
github.com/valkey-io/valkey (type 22, since Valkey 9).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from queuekeeper.rdb.packing import integers, listpack
from queuekeeper.rdb.source import Source


class Kind(StrEnum):
    """Type of a key, by the word of the command TYPE."""

    STRING = "string"
    LIST = "list"
    SET = "set"
    ZSET = "zset"
    HASH = "hash"
    STREAM = "stream"
    MODULE = "module"


NEVER = -1
"""In place of an instant at which something expires."""


class HashField(NamedTuple):
    """A field of a hash.

    :ivar expires_at_ms: -1 for never.
    """

    name: bytes
    value: bytes
    expires_at_ms: int = NEVER


class StreamId(NamedTuple):
    """Name of an entry of a stream."""

    ms: int
    number: int


@dataclass(frozen=True, kw_only=True)
class StreamGroup:
    """A consumer group of a stream.

    :ivar pending: entry -> instant of its last delivery, number of deliveries.
    :ivar consumers: name -> entries that are the consumer's.
    """

    name: bytes
    last_id: StreamId
    entries_read: int
    pending: dict[StreamId, tuple[int, int]]
    consumers: dict[bytes, tuple[StreamId, ...]]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream.

    :ivar entries: each with its fields and values in turn.
    """

    entries: Sequence[tuple[StreamId, tuple[bytes, ...]]]
    last_id: StreamId
    groups: Sequence[StreamGroup]


class _Form(NamedTuple):
    """How a value is written.

    :ivar parts: parts of a row: ``s`` a string, ``d`` eight bytes, ``l`` a length.
    :ivar value: what is made of the rows.
    :ivar has_count: whether the number of rows stands before them; else there is one.
    :ivar has_earliest: whether the first expiry of a field stands before all.
    """

    kind: Kind
    parts: str
    value: Callable[[int, list[Any]], Any]
    has_count: bool = True
    has_earliest: bool = False


_DOUBLE = struct.Struct("<d")
_INSTANT = struct.Struct("<q")
_RAW_ID = struct.Struct(">QQ")


def _first(rows: list[Any]) -> bytes:
    text: bytes = rows[0][0]
    return text


def _turns(elements: list[bytes], size: int) -> Iterator[Any]:
    """Return elements in groups; a rest is a fault."""
    return zip(*[iter(elements)] * size, strict=True)


def _quicklist(_: int, rows: list[Any]) -> list[bytes]:
    found: list[bytes] = []
    for container, text in rows:
        if container not in (1, 2):
            raise ValueError("a list with a node of no known form")
        found += [text] if container == 1 else listpack(text)
    return found


def _relative(earliest: int, rows: list[Any]) -> list[HashField]:
    # Expiries count from the earliest, so that 1 is that and 0 is none.
    return [HashField(name, value, earliest + life - 1 if life else NEVER) for life, name, value in rows]


_FORMS = {
    0: _Form(Kind.STRING, "s", lambda _, rows: _first(rows), has_count=False),
    2: _Form(Kind.SET, "s", lambda _, rows: [text for (text,) in rows]),
    4: _Form(Kind.HASH, "ss", lambda _, rows: [HashField(*row) for row in rows]),
    5: _Form(Kind.ZSET, "sd", lambda _, rows: [(member, *_DOUBLE.unpack(score)) for member, score in rows]),
    11: _Form(Kind.SET, "s", lambda _, rows: integers(_first(rows)), has_count=False),
    16: _Form(
        Kind.HASH,
        "s",
        lambda _, rows: [HashField(*pair) for pair in _turns(listpack(_first(rows)), 2)],
        has_count=False,
    ),
    17: _Form(
        Kind.ZSET,
        "s",
        lambda _, rows: [(member, float(score)) for member, score in _turns(listpack(_first(rows)), 2)],
        has_count=False,
    ),
    18: _Form(Kind.LIST, "ls", _quicklist),
    20: _Form(Kind.SET, "s", lambda _, rows: listpack(_first(rows)), has_count=False),
    24: _Form(Kind.HASH, "lss", _relative, has_earliest=True),
    25: _Form(
        Kind.HASH,
        "s",
        lambda _, rows: [
            HashField(name, value, int(end) or NEVER) for name, value, end in _turns(listpack(_first(rows)), 3)
        ],
        has_count=False,
        has_earliest=True,
    ),
}
_OF_VALKEY = {
    22: _Form(
        Kind.HASH, "ssd", lambda _, rows: [HashField(name, value, *_INSTANT.unpack(end)) for name, value, end in rows]
    )
}
_MODULE = 7
# Number -> what the streams of which Redis have: 5, 7.0, 7.2.
_STREAMS = {15: 1, 19: 2, 21: 3}
_OLD = {1, 3, 6, 9, 10, 12, 13, 14}


class Values:
    """Reads the values of a file.

    :param is_valkey: whether the file says that it is Valkey's own, which numbers some forms as Redis does others.
    """

    def __init__(self, source: Source, *, is_valkey: bool) -> None:
        self._source = source
        self._forms = _FORMS | _OF_VALKEY if is_valkey else _FORMS

    def kind(self, number: int) -> Kind | None:
        """Return the type of key whose value has a form; none for an unknown form."""
        if number in _STREAMS:
            return Kind.STREAM
        if number == _MODULE:
            return Kind.MODULE
        form = self._forms.get(number)
        return form.kind if form else None

    @staticmethod
    def unknown(number: int) -> str:
        """Return words about a number that is no form."""
        if number in _OLD:
            return f"a value of form {number}, which no Redis since 7.0 writes"
        return f"a value or mark of number {number}, which Queuekeeper does not know"

    def read(self, number: int) -> Any:
        """Return the next value: bytes of a string, a list of all else but streams; nothing of a module."""
        start = self._source.offset
        try:
            if number == _MODULE:
                return self.skip(number)
            if number in _STREAMS:
                return self._stream(_STREAMS[number])
            form = self._forms[number]
            earliest = self._source.milliseconds() if form.has_earliest else 0
            return form.value(earliest, list(self._rows(form, string=self._source.string)))
        except (ValueError, IndexError, struct.error):
            raise self._source.damaged(f"no {self.kind(number)} is", at=start) from None

    def skip(self, number: int) -> None:
        """Pass over the next value."""
        if number == _MODULE:
            self._source.length()
            self.skip_marked()
        elif number in _STREAMS:
            self._skip_stream(_STREAMS[number])
        else:
            form = self._forms[number]
            self._source.skip(8 * form.has_earliest)
            for _ in self._rows(form, string=self._source.skip_string):
                pass

    def skip_marked(self) -> None:
        """Pass over what a module has written, each part behind a mark of its form."""
        source = self._source
        forms: dict[int, Callable[[], Any]] = {
            1: source.length, 2: source.length, 3: partial(source.skip, 4), 4: partial(source.skip, 8),
            5: source.skip_string,
        }  # fmt: skip
        while mark := source.length():
            if mark not in forms:
                raise source.damaged(f"a module's value with mark {mark:,} stands")
            forms[mark]()

    def _rows(self, form: _Form, *, string: Callable[[], Any]) -> Iterator[tuple[Any, ...]]:
        source = self._source
        ways: dict[str, Callable[[], Any]] = {"s": string, "l": source.length, "d": partial(source.take, 8)}
        parts = [ways[part] for part in form.parts]
        for _ in range(source.length() if form.has_count else 1):
            yield tuple(part() for part in parts)

    # --- streams -----------------------------------------------------------------------------------------------

    def _stream(self, version: int) -> Stream:
        source = self._source
        entries: list[tuple[StreamId, tuple[bytes, ...]]] = []
        for _ in range(source.length()):
            first = StreamId(*_RAW_ID.unpack(source.string()))
            entries += _entries(first, listpack(source.string()))
        if source.length() != len(entries):
            raise ValueError("a stream with another number of entries than it says")
        last_id = self._id()
        if version >= 2:
            self._id(), self._id(), source.length()
        return Stream(entries=entries, last_id=last_id, groups=[self._group(version) for _ in range(source.length())])

    def _group(self, version: int) -> StreamGroup:
        source = self._source
        name, last_id = source.string(), self._id()
        entries_read = source.length() if version >= 2 else 0
        pending = {self._raw_id(): (source.milliseconds(), source.length()) for _ in range(source.length())}
        consumers = {}
        for _ in range(source.length()):
            consumer = source.string()
            source.skip(8 if version < 3 else 16)
            consumers[consumer] = tuple(self._raw_id() for _ in range(source.length()))
        return StreamGroup(name=name, last_id=last_id, entries_read=entries_read, pending=pending, consumers=consumers)

    def _skip_stream(self, version: int) -> None:
        source = self._source
        for _ in range(source.length()):
            source.skip_string()
            source.skip_string()
        source.length()
        self._id()
        if version >= 2:
            self._id(), self._id(), source.length()
        for _ in range(source.length()):
            self._group(version)

    def _id(self) -> StreamId:
        return StreamId(self._source.length(), self._source.length())

    def _raw_id(self) -> StreamId:
        return StreamId(*_RAW_ID.unpack(self._source.take(16)))


def _entries(first: StreamId, elements: list[bytes]) -> Iterator[tuple[StreamId, tuple[bytes, ...]]]:
    """Yield the entries of a node of a stream, without those that were deleted."""
    count, deleted, size = (_number(each) for each in elements[:3])
    names = elements[3 : 3 + size]
    at = 4 + size
    for _ in range(count + deleted):
        flags, ms, number = (int(each) for each in elements[at : at + 3])
        at += 3
        if flags & 2:
            values = elements[at : at + size]
            pairs = tuple(part for pair in zip(names, values, strict=True) for part in pair)
            at += size
        else:
            end = at + 1 + 2 * _number(elements[at])
            pairs = tuple(elements[at + 1 : end])
            at = end
        # How many elements the entry has, for who reads backwards.
        at += 1
        if not flags & 1:
            yield StreamId(first.ms + ms, first.number + number), pairs
    if at != len(elements):
        raise ValueError("a node of a stream with another number of entries than it says")


def _number(element: bytes) -> int:
    """Return an element that counts something: with one below 0 a node would lead back into itself."""
    if not element.isdigit():
        raise ValueError("a node of a stream that counts with what is no number")
    return int(element)
