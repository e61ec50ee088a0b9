"""JSON Lines with bytes in them: how bytes become text and back, and how lines are read; what they mean is others'."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import orjson

from queuekeeper.errors import UsageError

T = TypeVar("T")


def encoded(name: str, content: bytes) -> dict[str, str]:
    """Return bytes as text where they are UTF-8, else as base64, and say which."""
    try:
        return {name: content.decode(), f"{name}_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: b64encode(content).decode(), f"{name}_encoding": "base64"}


def decoded(name: str, given: dict[str, Any]) -> bytes:
    """Return the bytes that :func:`encoded` made a text of.

    :raises ValueError: naming the member and what it must be; never repeating it.
    """
    text, encoding = given[name], given.get(f"{name}_encoding", "utf-8")
    if type(text) is not str:
        raise ValueError(f"{name} must be text")
    if encoding == "utf-8":
        return text.encode()
    if encoding == "base64":
        try:
            return b64decode(text, validate=True)
        except ValueError:
            raise ValueError(f"{name} is not base64, as its encoding says") from None
    raise ValueError(f"{name}_encoding is {encoding!r}: it must be utf-8 or base64")


def read_lines(
    lines: Iterable[bytes],
    make: Callable[[dict[str, Any]], T],
    *,
    member: str,
    known: frozenset[str],
    purpose: str,
) -> Iterator[T]:
    """Read an object from each line; empty lines are passed over.

    :param make: makes of the object what it stands for; a ``ValueError`` or ``UsageError`` says what is wrong with it.
    :param member: that every line must have.
    :param known: all that a line may have.
    :param purpose: what cannot be done with a line that is wrong, such as ``appended``.
    :raises UsageError: naming the number of the line and what is wrong with it, never its content.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield make(_object(line, member, known))
        except (ValueError, UsageError) as error:
            raise UsageError(f"line {number} cannot be {purpose}: {error}") from None


def _object(line: bytes, member: str, known: frozenset[str]) -> dict[str, Any]:
    try:
        given = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(given, dict) or member not in given:
        raise ValueError(f"it must be an object with a {member}")
    unknown = sorted(given.keys() - known)
    if unknown:
        raise ValueError(f"it has members that are not known: {', '.join(unknown)}")
    return given


def open_file(path: Path) -> BinaryIO:
    """Open a file to read.

    :raises UsageError: when it cannot be read.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
