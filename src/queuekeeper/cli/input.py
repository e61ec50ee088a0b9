"""What commands about queues are given besides servers: bounds of a read, properties, content of files and stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from queuekeeper.clock import INSTANT_RULE, read_instant
from queuekeeper.errors import UsageError
from queuekeeper.jsonl import open_file
from queuekeeper.sessions.pages import Layout

EndAfter = Annotated[
    int | None, typer.Option(min=1, help="Number of messages after which to end. Without it, all that wait.")
]
Follow = Annotated[bool, typer.Option("--follow", help="Wait for more messages until SIGTERM or Ctrl-C.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Write a line of JSON for each message.")]


def _instant(text: str) -> datetime:
    try:
        return read_instant(text)
    except ValueError:
        raise UsageError(f"--due is {text!r}: {INSTANT_RULE}") from None


Due = Annotated[
    datetime | None, typer.Option("--due", parser=_instant, metavar="[%Y-%m-%dT%H:%M:%S%z|%Y-%m-%dT%H:%M%z]")
]
ClientId = Annotated[str, typer.Argument(metavar="CLIENT", help="The MQTT client id.")]
LayoutName = Annotated[
    Layout | None,
    typer.Option("--layout", help="Layout of the session in Redis. Without it, that in which it is there."),
]
Content = Annotated[bytes | None, typer.Option(parser=os.fsencode, metavar="TEXT")]
"""Content as a terminal or a script writes it, which need not be UTF-8."""
STANDARD_STREAM = "-"


def named_pairs(kind: str, texts: list[str] | None) -> list[tuple[str, str]]:
    """Return what repeated options say as ``NAME=TEXT``, in order; a name may come several times.

    :param kind: what each of them is, for the message.
    :raises UsageError: when one has no equals sign.
    """
    found = []
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{kind} {text!r} is not NAME=TEXT")
        found.append((name, value))
    return found


def named_texts(kind: str, texts: list[str] | None) -> dict[str, str]:
    """Return the same by name; of a name that comes several times, the last."""
    return dict(named_pairs(kind, texts))


def content(given: bytes | None, path: str | None) -> bytes:
    """Return what one of two options gives: a text, or a file's content, stdin's by ``-``.

    :raises UsageError: when the file cannot be read.
    """
    if given is not None:
        return given
    assert path is not None
    with opened(path) as file:
        return file.read()


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open what an option names for the block: a file, or stdin by ``-``.

    :raises UsageError: when the file cannot be read.
    """
    if path == STANDARD_STREAM:
        yield sys.stdin.buffer
        return
    with open_file(Path(path)) as file:
        yield file


@contextmanager
def lines_of(path: str) -> Iterator[Iterator[bytes]]:
    """Open what an option names for the block, as lines; how many were taken is shown as work takes them.

    :raises UsageError: when the file cannot be read.
    """
    from queuekeeper.cli.progress import followed
    from queuekeeper.cli.run_control import say
    from queuekeeper.jobs.progress import Narrator

    narrator = Narrator(say, "read", total=None, unit="lines")

    def told(lines: Iterable[bytes]) -> Iterator[bytes]:
        for number, line in enumerate(lines):
            narrator.at(number)
            yield line

    with opened(path) as file, nullcontext() if file.isatty() else followed():
        yield told(file)
