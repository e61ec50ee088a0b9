"""What Redis packs into one string: LZF, listpacks, sets of integers."""

from __future__ import annotations

from collections.abc import Iterator


def decompressed(data: bytes, size: int) -> bytes | None:
    """Return what LZF has compressed; nothing when the data are not of that form.

    :param size: number of bytes that it must have.
    """
    result = bytearray()
    at, end = 0, len(data)
    try:
        # What becomes larger than it must be is not built.
        while at < end and len(result) <= size:
            control = data[at]
            at += 1
            if control < 32:
                result += data[at : at + control + 1]
                at += control + 1
                continue
            length = (control >> 5) + 2
            if length == 9:
                length += data[at]
                at += 1
            distance = ((control & 0x1F) << 8 | data[at]) + 1
            at += 1
            start = len(result) - distance
            if start < 0:
                return None
            if length <= distance:
                result += result[start : start + length]
            else:
                result += (result[start:] * (length // distance + 1))[:length]
    except IndexError:
        return None
    return bytes(result) if len(result) == size and at == end else None


def listpack(data: bytes) -> list[bytes]:
    """Return the elements of a listpack; one that is a number is its digits.

    :raises ValueError: when the data are no listpack.
    """
    count = int.from_bytes(data[4:6], "little")
    if len(data) < 7 or int.from_bytes(data[:4], "little") != len(data) or data[-1] != 0xFF:
        raise ValueError("no listpack")
    elements = list(_elements(data))
    if count not in (len(elements), 0xFFFF):
        raise ValueError("a listpack with another number of elements than it says")
    return elements


def _elements(data: bytes) -> Iterator[bytes]:
    at, end = 6, len(data) - 1
    while at < end:
        first = data[at]
        if first < 0x80:
            size = 1
            element = b"%d" % first
        elif first < 0xC0:
            size = 1 + (first & 0x3F)
            element = data[at + 1 : at + size]
        elif first < 0xE0:
            size = 2
            number = (first & 0x1F) << 8 | data[at + 1]
            element = b"%d" % (number - 0x2000 if number >= 0x1000 else number)
        elif first < 0xF0:
            size = 2 + ((first & 0x0F) << 8 | data[at + 1])
            element = data[at + 2 : at + size]
        elif first == 0xF0:
            size = 5 + int.from_bytes(data[at + 1 : at + 5], "little")
            element = data[at + 5 : at + size]
        elif first <= 0xF4:
            size = 1 + (2, 3, 4, 8)[first - 0xF1]
            element = b"%d" % int.from_bytes(data[at + 1 : at + size], "little", signed=True)
        else:
            raise ValueError("a listpack with an element of no known form")
        yield element
        # The size stands behind the element, too, for who reads backwards.
        at += size + 1
        if size > 0x7F:
            # Redis writes the largest size of two bytes, of three and of four with a zero in front; Valkey does not.
            at += sum(size >= 1 << bits for bits in (7, 14, 21, 28)) + (data[at - 1 : at] == b"\0")
    if at != end:
        raise ValueError("a listpack whose last element is too long")


def integers(data: bytes) -> list[bytes]:
    """Return the members of a set of integers as their digits.

    :raises ValueError: when the data are no such set.
    """
    width, count = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")
    if width not in (2, 4, 8) or len(data) != 8 + width * count:
        raise ValueError("no set of integers")
    return [b"%d" % int.from_bytes(data[at : at + width], "little", signed=True) for at in range(8, len(data), width)]
