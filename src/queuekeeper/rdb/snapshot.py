"""A snapshot of a Redis, read key by key from its RDB file, in memory that does not grow with the file.

The frame is that of ``src/rdb.c`` in github.com/redis/redis and github.com/valkey-io/valkey: a header, facts about the
server, databases with their keys, the mark of the end, and a checksum. Redis 7.0 to 8.4 write versions 10 to 12, Valkey
8 version 11, Valkey 9 version 80 of its own. A later version is read as long as it holds nothing new.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, BinaryIO, NamedTuple, NoReturn

from queuekeeper.errors import UnreadableSnapshot
from queuekeeper.rdb.source import Source
from queuekeeper.rdb.values import NEVER, Kind, Values

_HEADER = re.compile(rb"(REDIS|VALKEY)([0-9]+)")
_HEADER_BYTES = 9
# Until the year 5138.
_SECONDS = re.compile(r"[0-9]{1,11}")
_LEAST_VERSION = 10
_FIRST_WITH_SLOTS = 12
_STRING = 0
(
    _SLOT_IMPORT, _SLOT_INFO, _FUNCTION, _, _MODULE, _IDLE, _FREQUENCY, _FACT, _SIZES, _EXPIRY_MS, _EXPIRY_S, _DATABASE,
    _END,
) = range(243, 256)  # fmt: skip


class Want(Enum):
    """What is wanted of a key: not even that it exists, how long its string is, or its value."""

    NOTHING = 0
    LENGTH = 1
    VALUE = 2


class Entry(NamedTuple):
    """A key of a snapshot.

    :ivar expires_at_ms: -1 for never. A key may have expired before the snapshot was taken.
    :ivar length: bytes of a string whose length was wanted.
    :ivar value: where it was wanted: bytes of a string; a list of the elements of a list or set, of members with their
        scores, or of :class:`~queuekeeper.rdb.values.HashField`; a :class:`~queuekeeper.rdb.values.Stream`; nothing of
        a module.
    """

    database: int
    key: bytes
    kind: Kind
    expires_at_ms: int
    length: int | None
    value: Any


Wanted = Callable[[int, bytes, Kind], Want]
"""Says what is wanted of a key, by its database, name and type."""


def everything(_database: int, _key: bytes, _kind: Kind) -> Want:
    """Want the value of each key."""
    return Want.VALUE


class Snapshot:
    """An RDB file, read once from its beginning.

    :param file: opened for reading bytes.
    :param name: what errors call the file.
    :ivar facts: what the server said of itself: ``redis-ver`` or ``valkey-ver``, ``ctime``, ``used-mem``, and more.
    :ivar key_count: number of keys of the first database, as the file says before them; 0 when it does not.
    :ivar is_clustered: whether the file names hash slots, as masters of clusters of Redis do since 7.4.
    :raises UnreadableSnapshot: when the file is none that Redis since 7.0 or Valkey has written.
    """

    def __init__(self, file: BinaryIO, *, name: str) -> None:
        self.facts: dict[str, str] = {}
        self.key_count = 0
        self.is_clustered = False
        self._source = Source(file, name=name)
        self._database = 0
        self._expires_at_ms = NEVER
        self._is_valkey = self._header()
        self._values = Values(self._source, is_valkey=self._is_valkey)
        self._number = self._next()

    @property
    def taken_at_ms(self) -> int | None:
        """Instant at which the server began to write, to the second; nothing when the file does not say it."""
        text = self.facts.get("ctime", "")
        return int(text) * 1_000 if _SECONDS.fullmatch(text) else None

    @property
    def is_of_single_server(self) -> bool:
        """Whether the file is of no cluster for sure: some programs do not say it of those of clusters."""
        names_slots = not self._is_valkey and self.version >= _FIRST_WITH_SLOTS
        return names_slots and self.key_count > 0 and not self.is_clustered

    def _header(self) -> bool:
        """Read which program wrote the file; return whether it was Valkey in a version of its own."""
        name = self._source.name
        head = self._source.take(_HEADER_BYTES)
        match = _HEADER.fullmatch(head)
        if not match:
            raise UnreadableSnapshot(
                f"{name} begins with {head!r}: it is no RDB file. Name the file that SAVE or BGSAVE writes, "
                "decompressed where it was compressed"
            )
        if int(match[2]) < _LEAST_VERSION:
            raise UnreadableSnapshot(
                f"{name} is of version {int(match[2])}, from before Redis 7.0: have Redis 7 load it and save it again"
            )
        self.version = int(match[2])
        return match[1] == b"VALKEY"

    def entries(self, wanted: Wanted = everything) -> Iterator[Entry]:
        """Yield the keys of which something is wanted, in the order of the file; the others are passed over.

        :raises UnreadableSnapshot: when the file is damaged, cut off, or holds something unknown. The checksum of the
            whole file stands at its end, so keys that were yielded before are sure only when the last one was.
        """
        source, values = self._source, self._values
        while self._number is not None:
            number = self._number
            kind = values.kind(number)
            assert kind is not None
            key = source.string()
            want = wanted(self._database, key, kind)
            length = value = None
            if want is Want.VALUE:
                value = values.read(number)
            elif number == _STRING:
                length = source.skip_string()
            else:
                values.skip(number)
            if want is not Want.NOTHING:
                yield Entry(self._database, key, kind, self._expires_at_ms, length, value)
            self._expires_at_ms = NEVER
            self._number = self._next()

    def _next(self) -> int | None:
        """Read what stands between keys; return the form of the next key's value, or nothing at the end."""
        source = self._source
        while True:
            number = source.byte()
            if number == _EXPIRY_MS:
                self._expires_at_ms = source.milliseconds()
            elif number == _EXPIRY_S:
                self._expires_at_ms = 1_000 * int.from_bytes(source.take(4), "little", signed=True)
            elif number < _SLOT_IMPORT:
                if self._values.kind(number) is None:
                    self._refuse(number)
                return number
            elif number == _IDLE:
                source.length()
            elif number == _FREQUENCY:
                source.byte()
            elif number == _FACT:
                name = source.string().decode(errors="replace")
                self.facts[name] = source.string().decode(errors="replace")
            elif number == _DATABASE:
                self._database = source.length()
            elif number == _SIZES:
                count, _ = source.length(), source.length()
                self.key_count = self.key_count or count
            elif number == _SLOT_INFO:
                self.is_clustered = True
                for _ in range(3):
                    source.length()
            elif number == _FUNCTION:
                source.skip_string()
            elif number == _MODULE:
                source.length()
                self._values.skip_marked()
            elif number == _SLOT_IMPORT and self._is_valkey:
                source.skip_string()
                for _ in range(2 * source.length()):
                    source.length()
            elif number == _END:
                self._end()
                return None
            else:
                self._refuse(number)

    def _refuse(self, number: int) -> NoReturn:
        """Refuse the file for a mark or form that is unknown, behind which nothing can be read."""
        source = self._source
        program = "Valkey" if self._is_valkey else "Redis"
        raise UnreadableSnapshot(
            f"{source.name} holds {self._values.unknown(number)}, at byte {source.offset - 1:,}; its version is "
            f"{program} {self.version}. If the file is whole, load it into a server that Queuekeeper reads (Redis 7.0 "
            "to 8.4, Valkey 8 or 9), or read the live server"
        )

    def _end(self) -> None:
        source = self._source
        found = source.summed()
        said = int.from_bytes(source.take(8), "little")
        # A server with rdbchecksum off writes 0.
        if said not in (0, found):
            raise source.damaged(f"its checksum is {found:016x}, and {said:016x} is said")
        if not source.is_at_end():
            raise source.damaged("more follows behind the end")
