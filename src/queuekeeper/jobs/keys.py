"""Bases of jobs that go through all keys of a pattern, on a single server or a cluster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import redis

from queuekeeper.errors import StalePlan
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.model import C, F, Job, NothingBesides, P, Step
from queuekeeper.jobs.shares import text_of
from queuekeeper.jobs.undo import PREVENTED
from queuekeeper.keyspace import SLOTS, format_cohorts, parse_cohorts
from queuekeeper.redis_client import address_of, is_cluster, redis_errors
from queuekeeper.redis_names import ALL_SLOTS, KEYS_PER_PAGE, READINGS, Names, masters, restless

Line = Mapping[str, Any]
"""Line of an undo file, which describes one change."""

_SLOTS = " slots "


class KeyPages(Job[P, C, F]):
    """A job that works on the keys of a pattern, page by page; an interrupted run continues behind its last page."""

    @abstractmethod
    def pattern(self) -> str:
        """Return the pattern of the keys, as SCAN takes it."""

    def shares(self) -> list[str]:
        """Return the slots of each master of a cluster, or ranges of hash slots of a single server."""
        client, shares = self.world.client, self.world.parameters.shares  # type: ignore[attr-defined]
        if isinstance(client, redis.RedisCluster):
            return [
                f"{master.address}{_SLOTS}{format_cohorts(sorted(master.slots))}"
                for master in masters(client)
                if master.slots
            ]
        address = address_of(client)
        if shares == 1:
            return [address]
        bounds = [SLOTS * share // shares for share in range(shares + 1)]
        return [f"{address}{_SLOTS}{first}-{last - 1}" for first, last in pairwise(bounds)]

    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield pages of key names from the servers that now hold the share's slots.

        A counting pass reads the names once, and counts a share again as a whole where a slot has moved.

        :raises StalePlan: when the share belongs to another server.
        """
        client, (address, _, slots) = self.world.client, share.partition(_SLOTS)
        if not is_cluster(client) and address != address_of(client):
            raise StalePlan(f"{address} is no master any more: plan again")

        def count() -> int:
            self.world.pace(0)
            return self.world.size(KEYS_PER_PAGE)

        names = Names(
            client,
            self.pattern(),
            slots=frozenset(parse_cohorts(slots, count=SLOTS)) if slots else ALL_SLOTS,
            count=count,
            readings=1 if self.world.counts_only else READINGS,
        )
        for page in names.pages(after):
            yield Step(cursor=page.cursor, work=page.names)
        if names.unsettled:
            self.moved = True
            self.world.say(f"{share}: {restless(names.unsettled)}")


@dataclass(kw_only=True)
class KeyCounts(Counts):
    """Keys that were looked at, and keys that are to be changed or were changed."""

    looked_at: ClassVar[frozenset[str]] = frozenset({"keys"})

    keys: int = 0
    changed: int = 0


class KeyJob(KeyPages[P, KeyCounts, NothingBesides]):
    """A job that changes keys one by one; names that are not UTF-8 are left alone.

    Where one call per key is too slow, override ``apply`` to send one script per page.
    """

    @property
    def client(self) -> Any:
        """Redis client, for any command."""
        return self.world.client

    @abstractmethod
    def line(self, key: str) -> Line:
        """Return the line of the undo file for a key, before the key is changed."""

    @abstractmethod
    def change(self, line: Line) -> bool:
        """Make the change of a line and return true; return false when something prevents it.

        With ``world.counts_only``, change nothing and return whether the change could be made.
        """

    def apply(self, step: Step) -> KeyCounts:
        """Change a page of keys, and note in the undo file those that can be changed, and what then was not."""
        self.world.pace(len(step.work))
        with redis_errors(address_of(self.world.client)):
            lines = [self.line(key) for name in step.work if (key := text_of(name)) is not None]
            with self.world.counting():
                possible = list(filter(self.change, lines))
            if self.world.counts_only:
                return KeyCounts(keys=len(step.work), changed=len(possible))
            self.world.writer.note(possible)
            prevented = [line for line in possible if not self.change(line)]
            self.world.writer.note({PREVENTED: line} for line in prevented)
            return KeyCounts(keys=len(step.work), changed=len(possible) - len(prevented))
