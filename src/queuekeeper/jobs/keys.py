"""Goes through all keys of a pattern, for a job on a single server or a cluster, and changes them one by one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from queuekeeper.errors import StalePlan
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.model import C, F, Job, NothingBesides, P, Step
from queuekeeper.jobs.shares import KEYS_PER_PAGE, text_of
from queuekeeper.keyspace import SLOTS, hash_slot
from queuekeeper.redis_client import address_of, is_cluster, nodes, redis_errors

Line = Mapping[str, Any]
"""What an undo file says of one change."""

_SLOTS = " slots "


class KeyPages(Job[P, C, F]):
    """A job that works on the keys of a pattern, a page at a time; a run goes on behind its last page."""

    @abstractmethod
    def pattern(self) -> str:
        """Return the pattern of the keys, as SCAN takes it."""

    def shares(self) -> list[str]:
        """Return a cluster's masters, or ranges of hash slots of a single server."""
        client, shares = self.world.client, self.world.parameters.shares  # type: ignore[attr-defined]
        addresses = [address for address, _ in nodes(client)]
        if is_cluster(client) or shares == 1:
            return addresses
        bounds = [SLOTS * share // shares for share in range(shares + 1)]
        return [f"{addresses[0]}{_SLOTS}{first}-{last - 1}" for first, last in pairwise(bounds)]

    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield pages of names of keys, as the server has them.

        :raises StalePlan: when the share is no master any more.
        """
        address, _, slots = share.partition(_SLOTS)
        node: Any = dict(nodes(self.world.client)).get(address)
        if node is None:
            raise StalePlan(f"{address} is no master any more: plan again")
        with redis_errors(address):
            server = str(node.info("server")["run_id"])
        first, last = (int(bound) for bound in (slots or f"0-{SLOTS - 1}").split("-"))
        # A cursor is good for the process that gave it: one that was started since sees its keys in another order.
        known, _, cursor = after.rpartition("/")
        if known == server and cursor == "0":
            return
        at = int(cursor) if known == server else 0
        while True:
            self.world.pace(0)
            with redis_errors(address):
                at, names = node.scan(cursor=at, match=self.pattern(), count=self.world.size(KEYS_PER_PAGE))
            yield Step(
                cursor=f"{server}/{at}", work=[name for name in names if not slots or first <= hash_slot(name) <= last]
            )
            if at == 0:
                return


@dataclass(kw_only=True)
class KeyCounts(Counts):
    """What was looked at, and what is to be changed or was."""

    looked_at: ClassVar[frozenset[str]] = frozenset({"keys"})

    keys: int = 0
    changed: int = 0


class KeyJob(KeyPages[P, KeyCounts, NothingBesides]):
    """A job that changes keys one by one; names that are no text are left alone.

    Where a call for each key is too slow, ``apply`` of the job's own sends one script for a page.
    """

    @property
    def client(self) -> Any:
        """Redis, for any command."""
        return self.world.client

    @abstractmethod
    def line(self, key: str) -> Line:
        """Return what the undo file says of a key, before it is changed."""

    @abstractmethod
    def change(self, line: Line) -> bool:
        """Do what a line says, unless something is in the way; where ``world.counts_only``, only tell whether it is."""

    def apply(self, step: Step) -> KeyCounts:
        """Change a page of keys."""
        self.world.pace(len(step.work))
        with redis_errors(address_of(self.world.client)):
            lines = [self.line(key) for name in step.work if (key := text_of(name)) is not None]
            self.world.writer.note(lines)
            return KeyCounts(keys=len(step.work), changed=sum(map(self.change, lines)))
