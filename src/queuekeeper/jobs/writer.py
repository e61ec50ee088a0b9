"""Changes a store for a job, or only counts what it would change: a plan is the job with a writer that counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queuekeeper import lua
from queuekeeper.jobs.undo import UndoFile
from queuekeeper.redis_client import RedisClient


class Writer:
    """Sends scripts, and notes before what they are about to change.

    What only counts sends the same scripts in the form in which they answer what they would do: the server decides
    alike, and refuses every write.

    :param undo: where changes are noted; none for a job that cannot be undone.
    :param counts_only: nothing is changed or noted.
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
        """Have lines on disk before what they tell of is changed."""
        if self.undo is not None and not self.counts_only:
            self.undo.write(lines)

    def still_there(self, count: int) -> int:
        """Return how many of what scripts say to have removed is there yet: where a next page begins behind it."""
        return self.caller.still_there(count)
