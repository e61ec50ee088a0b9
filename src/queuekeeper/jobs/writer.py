"""Writes to a store for a job, or only counts what would be written, for plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queuekeeper import lua
from queuekeeper.jobs.undo import UndoFile
from queuekeeper.redis_client import RedisClient


class Writer:
    """Sends scripts, and notes each change in the undo file before it is made.

    A counting writer sends the same scripts as dry runs: the server decides in the same way and writes nothing.

    :param undo: undo file; none for a job that cannot be undone.
    :param counts_only: whether nothing is changed or noted.
    """

    def __init__(self, client: RedisClient, *, undo: UndoFile | None = None, counts_only: bool = False) -> None:
        self.client = client
        self.caller = lua.ScriptCaller(client, counts_only=counts_only)
        self.counts_only = counts_only
        self.undo = undo

    def execute(self, calls: Sequence[lua.Call]) -> lua.Replies:
        """Run scripts and return what they did, or would do; see :meth:`queuekeeper.lua.ScriptCaller.execute`."""
        return self.caller.execute(calls)

    def note(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write lines to the undo file before their changes are made."""
        if self.undo is not None and not self.counts_only:
            self.undo.write(lines)

    def still_there(self, count: int) -> int:
        """Return how many of the items that scripts reported as removed still exist: all in a dry run, else none."""
        return self.caller.still_there(count)
