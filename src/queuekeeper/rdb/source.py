"""The bytes of an RDB file, read as a stream: numbers, lengths and strings as the format writes them."""

from __future__ import annotations

from typing import BinaryIO

from queuekeeper.errors import UnreadableSnapshot
from queuekeeper.rdb.checksum import Checksum
from queuekeeper.rdb.packing import decompressed

_CHUNK_BYTES = 2**20
_LONGEST_STRING_BYTES = 2**32
# A reference of three bytes stands for at most 264.
_MOST_FROM_A_BYTE = 264


class Source:
    """Reads a file forwards, a chunk at a time, and sums it up.

    :param file: opened for reading bytes.
    :param name: what errors call the file.
    """

    def __init__(self, file: BinaryIO, *, name: str) -> None:
        self.name = name
        self.checksum = Checksum()
        self._file = file
        self._chunk = b""
        self._at = 0
        self._before = 0

    @property
    def offset(self) -> int:
        """Number of bytes that were read."""
        return self._before + self._at

    def damaged(self, words: str, *, at: int | None = None) -> UnreadableSnapshot:
        """Return the refusal of the file for what stands at a byte; without one, for what was read last."""
        place = self.offset if at is None else at
        return UnreadableSnapshot(
            f"{self.name}: {words} at byte {place:,}. The file is damaged: copy it again, or take another snapshot"
        )

    def summed(self) -> int:
        """Return the checksum of what was read."""
        self._forget()
        return self.checksum.value()

    def is_at_end(self) -> bool:
        """Return whether nothing follows."""
        return self._at == len(self._chunk) and not self._file.read(1)

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        end = self._at + count
        if end > len(self._chunk):
            self._fetch(count)
            end = count
        data = self._chunk[self._at : end]
        self._at = end
        return data

    def skip(self, count: int) -> None:
        """Pass over bytes without holding them all."""
        while count > len(self._chunk) - self._at:
            count -= len(self._chunk) - self._at
            self._at = len(self._chunk)
            self._fetch(1)
        self._at += count

    def _fetch(self, count: int) -> None:
        """Have at least so many bytes at hand."""
        start = self.offset
        rest = self._chunk[self._at :]
        self._forget()
        parts, size = [rest], len(rest)
        while size < count:
            part = self._file.read(_CHUNK_BYTES)
            if not part:
                raise UnreadableSnapshot(
                    f"{self.name} ends after {self._before + size:,} bytes, within what begins at byte {start:,}: it "
                    "was cut off. Copy it again when the server has written it whole"
                )
            parts.append(part)
            size += len(part)
        self._chunk = b"".join(parts)

    def _forget(self) -> None:
        self.checksum.add(memoryview(self._chunk)[: self._at])
        self._before += self._at
        self._chunk, self._at = self._chunk[self._at :], 0

    # --- as the format writes it -------------------------------------------------------------------------------

    def byte(self) -> int:
        """Return the next byte."""
        at = self._at
        if at < len(self._chunk):
            self._at = at + 1
            return self._chunk[at]
        return self.take(1)[0]

    def length(self) -> int:
        """Return a length, which any number of 64 bits may be."""
        return self._length(self.byte())

    def _length(self, first: int) -> int:
        if first < 0x40:
            return first
        if first < 0x80:
            return (first & 0x3F) << 8 | self.byte()
        if first in (0x80, 0x81):
            return int.from_bytes(self.take(4 if first == 0x80 else 8), "big")
        raise self.damaged(f"no length begins with {first:#04x}", at=self.offset - 1)

    def milliseconds(self) -> int:
        """Return an instant."""
        return int.from_bytes(self.take(8), "little", signed=True)

    def string(self) -> bytes:
        """Return a string; one that is a number is its digits."""
        first = self.byte()
        if first < 0xC0:
            return self.take(self._bounded(self._length(first)))
        if first == 0xC3:
            start, size, whole = self._compressed()
            text = decompressed(self.take(self._bounded(size)), whole)
            if text is None:
                raise self.damaged("no compressed string is", at=start)
            return text
        return self._digits(first)

    def skip_string(self) -> int:
        """Pass over a string and return how many bytes it has."""
        first = self.byte()
        if first < 0xC0:
            size = self._length(first)
            self.skip(size)
            return size
        if first == 0xC3:
            _, size, whole = self._compressed()
            self.skip(size)
            return whole
        return len(self._digits(first))

    def _digits(self, first: int) -> bytes:
        if first > 0xC2:
            raise self.damaged(f"no string begins with {first:#04x}", at=self.offset - 1)
        return b"%d" % int.from_bytes(self.take(1 << first - 0xC0), "little", signed=True)

    def _compressed(self) -> tuple[int, int, int]:
        """Return where a compressed string begins, its size, and its size when it is decompressed."""
        start = self.offset - 1
        size, whole = self.length(), self.length()
        if whole > size * _MOST_FROM_A_BYTE:
            raise self.damaged(f"{size:,} bytes cannot be {whole:,} compressed ones", at=start)
        return start, size, whole

    def _bounded(self, size: int) -> int:
        if size > _LONGEST_STRING_BYTES:
            raise self.damaged(f"no string has {size:,} bytes, as one says")
        return size
