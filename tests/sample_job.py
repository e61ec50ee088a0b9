"""A job that gives keys another prefix: all that has to be written for a job, as CONTRIBUTING quotes it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from queuekeeper.jobs.common import RunParameters
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.model import Job, NothingBesides, Step, Words
from queuekeeper.jobs.parameters import parameter
from queuekeeper.jobs.registry import add_job


class RenamingParameters(RunParameters):
    """What a renaming is asked to do."""

    old: str = parameter("old:", title="Old prefix", help="Keys that begin with it are renamed.", longest=100)
    new: str = parameter("new:", title="New prefix", help="What they begin with afterwards.", longest=100)


@dataclass(kw_only=True)
class RenamingCounts(Counts):
    """What was found, or was done. A key is left alone whose new name is taken."""

    looked_at: ClassVar[frozenset[str]] = frozenset({"keys"})

    keys: int = 0
    renamed: int = 0


@add_job
class Renaming(Job[RenamingParameters, RenamingCounts, NothingBesides]):
    """The job."""

    kind = "rename_keys"
    words = Words(noun="renaming of keys", title="Renaming", about="keys", command="keys rename")
    undoes = True

    def shares(self) -> list[str]:
        """Return the one share that there is."""
        return ["all"]

    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield pages of keys."""
        client: Any = self.world.client
        cursor = int(after or 0)
        while True:
            cursor, keys = client.scan(cursor, match=f"{self.world.parameters.old}*", count=self.world.size(1_000))
            yield Step(cursor=str(cursor), work=[key.decode() for key in keys])
            if cursor == 0:
                return

    def apply(self, step: Step) -> RenamingCounts:
        """Rename a page of keys."""
        self.world.pace(len(step.work))
        names = {key: self.world.parameters.new + key.removeprefix(self.world.parameters.old) for key in step.work}
        self.world.writer.note({"from": old, "to": new} for old, new in names.items())
        renamed = sum(self._rename(old, new) for old, new in names.items())
        return RenamingCounts(keys=len(names), renamed=renamed)

    def take_back(self, line: Mapping[str, Any]) -> bool:
        """Give a key its old name again."""
        return self._rename(line["to"], line["from"])

    def _rename(self, old: str, new: str) -> bool:
        client: Any = self.world.client
        if self.world.counts_only or not client.exists(old):
            return bool(client.exists(old) and not client.exists(new))
        return bool(client.renamenx(old, new))
