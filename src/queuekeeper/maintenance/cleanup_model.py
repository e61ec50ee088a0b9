"""What a cleanup is asked to do, what it finds and what it reports; it does no input or output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from queuekeeper.errors import UsageError
from queuekeeper.jobs.counts import Counts
from queuekeeper.keyspace import check_prefix

KIND = "expired_reference_cleanup"
"""What runs of it are called where all kinds of maintenance are kept."""


@dataclass(frozen=True, kw_only=True)
class CleanupParameters:
    """What a cleanup is asked to do.

    :param key_prefix: put before every key (TBMQ: ``CACHE_PREFIX``).
    :param default_ttl_s: life of a message without an expiry interval; at least the broker's.
    :param session_limit: messages that the broker keeps per session: a fuller one counts as crowded.
    :param grace_s: a message without reference that is younger is left alone; a message without expiry whose life is
        over already gets this much more.
    :param idle_days: how long the packet id and the fields of a session are kept in which no message waits, from the
        first cleanup that sees it so; more than the longest session expiry of the broker.
    :param max_operations_per_s: keys and references looked at per second to begin with, over all shards; none for no
        limit.
    :param max_run_minutes: how long one call of the cleanup works in a shard; none for no limit.
    :param shares: how many tasks share a single server, by ranges of hash slots; in a cluster each
        master is one.
    """

    key_prefix: str = ""
    default_ttl_s: int = 604_800
    session_limit: int = 10_000
    grace_s: int = 3_600
    idle_days: int = 30
    max_operations_per_s: int | None = None
    max_run_minutes: int | None = None
    shares: int = 1

    def __post_init__(self) -> None:
        check_prefix(self.key_prefix)
        bounds = {
            "default_ttl_s": 4_294_967_295,
            "session_limit": 65_535,
            "grace_s": 31_536_000,
            "idle_days": 3_650,
            "max_operations_per_s": 2_147_483_647,
            "max_run_minutes": 10_080,
            "shares": 64,
        }
        for name, highest in bounds.items():
            value = getattr(self, name)
            if value is None and name.startswith("max_"):
                continue
            if type(value) is not int or not 1 <= value <= highest:
                raise UsageError(f"{name} is {value!r}: it must be an integer from 1 to {highest:,}")


@dataclass(kw_only=True)
class CleanupCounts(Counts):
    """What was found, and by an apply: what was done.

    :ivar keys: keys of sessions that were looked at.
    :ivar dead_references: references whose message is gone; removed.
    :ivar crowded_queues: queues, nine tenths full or more, in which dead references take places of live messages.
    :ivar orphans: messages that no reference names; removed.
    :ivar expiries_repaired: messages without expiry that get one.
    :ivar idle_keys: packet ids and fields of sessions without messages; given an expiry.
    :ivar shared_subscriptions: abandoned groups of shared subscriptions among the sessions of the idle keys.
    :ivar young_orphans: messages without reference that are too young to judge; left alone.
    :ivar unreadable: records that nobody can read; left to the remedies.
    :ivar foreign_references: members of sets that name no message of their session; left to the remedies.
    :ivar wrong_type_keys: keys that hold another type than they should, or what is none of a session's; left alone.
    :ivar scattered_keys: keys, in a cluster, of clients whose id begins with ``}``: their braces hold nothing, so each
        key is in another slot; left to ``rekey_clients``.
    :ivar held_sessions: idle sessions that are to last for ever, and sessions that are being imported or belong to
        PostgreSQL; left alone.
    :ivar freed_bytes: memory of what is removed, as MEMORY USAGE says; of a set, its dead references' share.
    :ivar later_bytes: memory of the idle keys, which is freed when they expire.
    """

    looked_at: ClassVar[frozenset[str]] = frozenset({"keys", "sessions", "references"})

    keys: int = 0
    sessions: int = 0
    references: int = 0
    dead_references: int = 0
    crowded_queues: int = 0
    orphans: int = 0
    expiries_repaired: int = 0
    idle_keys: int = 0
    shared_subscriptions: int = 0
    young_orphans: int = 0
    unreadable: int = 0
    foreign_references: int = 0
    wrong_type_keys: int = 0
    scattered_keys: int = 0
    held_sessions: int = 0
    freed_bytes: int = 0
    later_bytes: int = 0

    @property
    def removed(self) -> int:
        """Keys and references that go."""
        return self.dead_references + self.orphans

    @property
    def repaired(self) -> int:
        """Keys that get an expiry."""
        return self.expiries_repaired + self.idle_keys

    @property
    def to_do(self) -> int:
        """All that a cleanup changes; 0 where everything is clean."""
        return self.removed + self.repaired


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """What there is to do in one shard.

    :param shard: ``host:port``, followed by a range of hash slots where a server is shared.
    """

    shard: str
    counts: CleanupCounts


@dataclass(frozen=True, kw_only=True)
class CrowdedQueue:
    """A queue with many dead references.

    :param client_hash: keyed hash of the client id; empty where no key was given.
    """

    client_hash: str
    references: int
    dead: int


@dataclass(frozen=True, kw_only=True)
class CleanupPlan:
    """What a cleanup would do; nothing was written.

    :param as_of_ms: when it was made.
    :param worst: queues with most dead references, worst first.
    """

    parameters: CleanupParameters
    code_version: str
    as_of_ms: int
    shards: tuple[ShardPlan, ...]
    counts: CleanupCounts
    worst: tuple[CrowdedQueue, ...]
    seconds: float

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.counts.to_do == 0


@dataclass(frozen=True, kw_only=True)
class CleanupReport:
    """What was done in one shard, over all calls of the run.

    :param done: whether the whole shard was gone through; else the run can go on.
    :param stopped: why it was not; empty when it was.
    :param undo_file: what can be taken back; empty when nothing was changed.
    """

    maintenance_run_id: str
    shard: str
    done: bool
    stopped: str
    counts: CleanupCounts
    seconds: float
    undo_file: str


@dataclass(frozen=True, kw_only=True)
class CleanupOutcome:
    """A whole run, judged by a second plan.

    :param planned: what the plan said.
    :param counts: what was done.
    :param left: what the second plan would still do; in a store in use, what has expired since.
    :param shards_open: shards that were not gone through to the end.
    """

    maintenance_run_id: str
    planned: CleanupCounts
    counts: CleanupCounts
    left: CleanupCounts
    shards_open: tuple[str, ...]

    @property
    def moved_on(self) -> dict[str, int]:
        """What was planned and not done, by name: planned = done + moved on; less than 0 where more has come since."""
        return self.planned.moved_on(self.counts)

    @property
    def clean(self) -> bool:
        """Whether a second cleanup would find nothing to do."""
        return not self.shards_open and self.left.to_do == 0


@dataclass(frozen=True, kw_only=True)
class UndoReport:
    """What was taken back; of a dry run, what would be. What was noted is taken back or left.

    :param noted: changes that the undo files tell of, each once.
    :param references: dead references that are back in their sets.
    :param expiries: keys that have no expiry again; one that has another by now is left as it is.
    :param left: changes that somebody else has gone on from, or that never came about.
    :param wrong_type_keys: sets that are of another type by now; left as they are.
    """

    maintenance_run_id: str
    dry_run: bool
    files: int
    noted: int
    references: int
    expiries: int
    left: int
    wrong_type_keys: int
