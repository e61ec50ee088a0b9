"""A job that gives keys another prefix: all that has to be written for a job."""

from __future__ import annotations

from queuekeeper.jobs import KeyJob, Line, RunParameters, Words, add_job, parameter
from queuekeeper.keyspace import literally


class RenamingParameters(RunParameters):
    """What a renaming is asked to do."""

    old: str = parameter("old:", title="Old prefix", help="Keys that begin with it are renamed.", longest=100)
    new: str = parameter("new:", title="New prefix", help="What they begin with afterwards.", longest=100)


@add_job
class Renaming(KeyJob[RenamingParameters]):
    """Rename keys one by one; a key whose new name is taken is left alone."""

    kind = "rename_keys"
    words = Words(noun="renaming of keys", title="Renaming", about="keys")
    asks = undoes = True

    def pattern(self) -> str:
        return literally(self.world.parameters.key_prefix + self.world.parameters.old) + "*"

    def line(self, key: str) -> Line:
        asked = self.world.parameters
        rest = key.removeprefix(asked.key_prefix + asked.old)
        return {"from": key, "to": asked.key_prefix + asked.new + rest}

    def change(self, line: Line) -> bool:
        return self._rename(line["from"], line["to"])

    def take_back(self, line: Line) -> bool:
        return self._rename(line["to"], line["from"])

    def _rename(self, old: str, new: str) -> bool:
        free = self.client.exists(old) and not self.client.exists(new)
        return bool(free and (self.world.counts_only or self.client.renamenx(old, new)))
