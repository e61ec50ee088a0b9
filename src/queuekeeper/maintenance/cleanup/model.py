"""Parameters, counts and findings of a cleanup."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import ClassVar, TypeAlias

from queuekeeper.errors import QueuekeeperError
from queuekeeper.jobs import common
from queuekeeper.jobs.common import RunParameters, SessionRules
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.pace import RunPaused, TimeIsUp
from queuekeeper.jobs.parameters import Section, days
from queuekeeper.report.figures import number, size
from queuekeeper.wording import number_of

KIND = "expired_reference_cleanup"
"""Name of the kind of runs."""

Stop: TypeAlias = QueuekeeperError | RunPaused | TimeIsUp
"""Errors that end a page early."""


class CleanupParameters(SessionRules, RunParameters):
    """Parameters of a cleanup."""

    grace_s: int = common.grace_s(
        3_600,
        help="Age in seconds from which a message without a reference is removed. A message that should have expired "
        "but has no expiry gets one this many seconds after the cleanup.",
    )
    idle_days: int = days(
        30,
        title="Idle sessions",
        help="Days for which the packet id and the fields of an empty session are kept, from the first cleanup that "
        "finds the session empty; a new message ends the count. Set it to more than the broker's longest "
        "session expiry.",
        section=Section.RULES,
        examples=[8, 30, 90],
    )
    max_operations_per_s: int | None = common.max_operations_per_s(
        None, counted="Keys and references looked at", examples=(None, 5_000, 20_000)
    )
    shares: int = common.shares(
        1,
        most=64,
        shared="How many tasks share a single server, by ranges of hash slots. A cluster always has one task for each "
        "master.",
    )


@dataclass(kw_only=True)
class CleanupCounts(Counts):
    """Counts of what a plan found, or a run did.

    :ivar keys: keys of sessions that were looked at.
    :ivar dead_references: references whose message is gone; removed.
    :ivar crowded_queues: queues, nine tenths full or more, in which dead references take places of live messages.
    :ivar orphans: messages that no reference names; removed.
    :ivar expired_messages: messages of packed sessions whose lives are over; removed.
    :ivar expiries_repaired: messages without expiry that get one.
    :ivar idle_keys: packet ids and fields of sessions without messages, and packed sessions that were imported and
        hold none; given an expiry.
    :ivar shared_subscriptions: abandoned groups of shared subscriptions among the sessions of the idle keys.
    :ivar young_orphans: messages without reference that are too young to judge; left alone.
    :ivar unreadable: records that nobody can read; left to the remedies.
    :ivar foreign_references: members of sets that name no message of their session; left to the remedies.
    :ivar wrong_type_keys: keys of a wrong type, or that are no keys of a session; left alone.
    :ivar scattered_keys: keys, in a cluster, of clients whose id begins with ``}``: their hash tag is empty, so each
        key is in another slot; left to ``rekey_clients``.
    :ivar held_sessions: idle sessions without an end, and sessions that are being imported or belong to PostgreSQL;
        left alone.
    :ivar freed_bytes: memory of what is removed, by MEMORY USAGE; of a set, the share of its dead references.
    :ivar later_bytes: memory of the idle keys in TBMQ's layout, which is freed when they expire.
    """

    looked_at: ClassVar[frozenset[str]] = frozenset(
        {
            "keys", "sessions", "references", "young_orphans", "unreadable", "foreign_references", "wrong_type_keys",
            "scattered_keys", "held_sessions",
        }
    )  # fmt: skip

    keys: int = 0
    sessions: int = 0
    references: int = 0
    dead_references: int = 0
    crowded_queues: int = 0
    orphans: int = 0
    expired_messages: int = 0
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
        """Keys and references that are removed."""
        return self.dead_references + self.orphans + self.expired_messages

    @property
    def repaired(self) -> int:
        """Keys that get an expiry."""
        return self.expiries_repaired + self.idle_keys

    @property
    def to_do(self) -> int:
        """Number of all changes of a cleanup; 0 where everything is clean."""
        return self.removed + self.repaired

    @property
    def changes(self) -> int:
        """Number of all changes."""
        return self.to_do

    def rows(self) -> list[tuple[str, str]]:
        """Return the counts as pairs of name and text: changes first, then what is left alone."""
        left = {
            "too young to judge": self.young_orphans,
            "unreadable": self.unreadable,
            "foreign references": self.foreign_references,
            "keys of another type": self.wrong_type_keys,
            "keys that an id beginning with } scatters": self.scattered_keys,
            "held sessions": self.held_sessions,
        }
        looked_at = starmap(number_of, ((self.keys, "key"), (self.sessions, "queue"), (self.references, "reference")))
        crowded = number_of(self.crowded_queues, "queue")
        return [
            ("Looked at", ", ".join(looked_at)),
            ("Dead references", f"{number(self.dead_references)}, crowding out live messages in {crowded}"),
            ("Messages without reference", number(self.orphans)),
            ("Expired messages of packed sessions", number(self.expired_messages)),
            ("Messages that get an expiry", number(self.expiries_repaired)),
            (
                "Keys of idle sessions that get an expiry",
                f"{number(self.idle_keys)}, {number(self.shared_subscriptions)} of abandoned shared subscriptions",
            ),
            (
                "Memory",
                f"{size(self.freed_bytes)} at once, {size(self.later_bytes)} when idle sessions expire (MEMORY USAGE)",
            ),
            ("Left alone", ", ".join(f"{number(count)} {what}" for what, count in left.items() if count) or "nothing"),
        ]


@dataclass(frozen=True, kw_only=True)
class CrowdedQueue:
    """A queue with many dead references.

    :param client_hash: keyed hash of the client id; empty where no key was given.
    """

    client_hash: str
    references: int
    dead: int


@dataclass(frozen=True, kw_only=True)
class CleanupFound:
    """Findings of a plan besides its counts.

    :param worst: queues with most dead references, worst first.
    """

    worst: tuple[CrowdedQueue, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UndoReport:
    """What an undo took back, or in a dry run would take back. Every change is either taken back or left.

    :param noted: changes in the undo files, each counted once.
    :param references: dead references that are back in their sets.
    :param expiries: keys whose expiry was removed again; a key with another expiry by now keeps it.
    :param left: changes that were left: somebody has used the place since, or they were never made.
    :param wrong_type_keys: keys that were sets and have another type now; they stay.
    """

    maintenance_run_id: str
    dry_run: bool
    files: int
    noted: int
    references: int
    expiries: int
    left: int
    wrong_type_keys: int
