"""Parameters, counts and findings of the collection of compacted queues."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from queuekeeper.compacted.model import Retention, RetentionPolicy
from queuekeeper.jobs import common
from queuekeeper.jobs.common import RunParameters
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.parameters import Section, parameter, seconds
from queuekeeper.jobs.shares import share_names
from queuekeeper.keyspace import COMPACTED_REGISTRIES
from queuekeeper.report.figures import number, size

KIND = "compacted_queue_gc"
"""Name of the kind of runs."""


def _age(default: int, *, title: str, ends: str, **said: Any) -> Any:
    """Declare an age in seconds.

    :param ends: clause that says what happens at this age.
    """
    return seconds(default, title=title, help=f"Age in seconds at which {ends}", least=0, **said)


def _filter(plural: str, *, begins: str, example: str) -> Any:
    """Declare a pattern that selects clients or keys.

    :param begins: beginning of the help, which says what has to match.
    """
    return parameter(
        "",
        title=plural.capitalize(),
        help=f"{begins} matches this pattern with *, ? and [], such as '{example}'.",
        unset=f"all {plural}",
        section=Section.RULES,
        longest=1_000,
        noun="PATTERN",
        examples=[None, example],
    )


class CollectionParameters(RunParameters):
    """Parameters of a collection."""

    policy: str = parameter(
        RetentionPolicy.DELETE.value,
        title="Policy",
        help="Which messages are removed at the age below. Queues with their own rules keep to those.",
        choices={
            "delete": "delete: every message, acknowledged or not",
            "acked_only": "acked_only: every acknowledged message",
            "compact": "compact: only tombstones, the newest value of each key stays",
        },
    )
    retention_s: int = _age(
        604_800,
        title="Retention",
        ends="the policy removes a message of a queue without its own rules.",
        examples=[86_400, 604_800, 2_592_000],
    )
    tombstone_s: int = _age(
        86_400,
        title="Life of tombstones",
        ends="an acknowledged tombstone is removed.",
        examples=[3_600, 86_400],
        section=Section.RULES,
    )
    override: bool = parameter(
        False,
        title="Override own rules",
        help="Collect all queues, due or not, and apply the rules above also to queues with their own rules.",
        section=Section.RULES,
    )
    client_filter: str = _filter("clients", begins="Look only at queues whose client id", example="meter-*")
    key_filter: str = _filter("keys", begins="Remove only messages whose key", example="config/*")
    keep_values: bool = parameter(
        True,
        title="Keep values for an undo",
        help="Write the value of each removed message to the undo file, so that it can be restored. Otherwise the file "
        "only lists the messages.",
        section=Section.RECORDS,
    )
    max_operations_per_s: int | None = common.max_operations_per_s(
        20_000, counted="Queues and messages looked at", examples=(None, 5_000, 20_000)
    )
    max_jitter_s: int = seconds(
        0,
        proposed=30,
        title="Late start",
        help="Longest random delay in seconds before a task starts, so that not all tasks start together.",
        section=Section.PACE,
        least=0,
        most=3_600,
        examples=[0, 30],
    )
    shares: int = common.shares(4, most=COMPACTED_REGISTRIES, shared="How many tasks share the registry of queues.")

    @property
    def retention(self) -> Retention:
        """The rules as a retention of queues."""
        return Retention(
            policy=RetentionPolicy(self.policy),
            retention_ms=1_000 * self.retention_s,
            tombstone_ms=1_000 * self.tombstone_s,
        )

    @property
    def is_regular(self) -> bool:
        """Whether the run collects by the usual rules; other runs leave the registry unchanged."""
        return not (self.override or self.client_filter or self.key_filter)

    def wants_client(self, client_id: str) -> bool:
        """Return whether a client's queue is to be collected."""
        return not self.client_filter or fnmatchcase(client_id, self.client_filter)

    def wants_key(self, key: bytes) -> bool:
        """Return whether messages of this key may be removed."""
        return not self.key_filter or fnmatchcase(key.decode("utf-8", "surrogateescape"), self.key_filter)

    def share_names(self) -> list[str]:
        """Return the shares of the work: ranges of parts of the registry."""
        return share_names(self.shares, parts=COMPACTED_REGISTRIES)


@dataclass(kw_only=True)
class CollectionCounts(Counts):
    """Counts of what was due, or was collected.

    :ivar queues: queues that were looked at.
    :ivar due_queues: queues in which something was due.
    :ivar messages: messages that were due, or were removed.
    :ivar unacked: those of ``messages`` that nobody had acknowledged.
    :ivar tombstones: those of ``messages`` that were tombstones.
    :ivar freed_bytes: bytes of their keys and values.
    :ivar kept: messages that were due when found, and stayed because a newer value had come.
    :ivar broken_queues: queues that could not be collected; the log says why.
    :ivar held_parts: parts of the registry that were left to another collector.
    """

    looked_at: ClassVar[frozenset[str]] = frozenset({"queues"})

    queues: int = 0
    due_queues: int = 0
    messages: int = 0
    unacked: int = 0
    tombstones: int = 0
    freed_bytes: int = 0
    kept: int = 0
    broken_queues: int = 0
    held_parts: int = 0

    @property
    def acked(self) -> int:
        """Messages of ``messages`` that had been acknowledged."""
        return self.messages - self.unacked

    @property
    def changes(self) -> int:
        """Number of all changes."""
        return self.messages

    @property
    def broken(self) -> int:
        """Queues that cannot be collected."""
        return self.broken_queues

    @property
    def removed(self) -> int:
        """Messages that are removed."""
        return self.messages

    def rows(self) -> list[tuple[str, str]]:
        """Return the counts as names and texts."""
        return [
            ("Queues looked at", f"{number(self.queues)}, {number(self.due_queues)} with something due"),
            ("Messages", number(self.messages)),
            ("Acknowledged", number(self.acked)),
            ("Not acknowledged", number(self.unacked)),
            ("Tombstones", number(self.tombstones)),
            ("Keys and values", size(self.freed_bytes)),
            ("Left alone, since a newer value came", number(self.kept)),
            ("Queues that cannot be collected", number(self.broken_queues)),
            ("Parts left to another collector", number(self.held_parts)),
        ]


@dataclass(frozen=True, kw_only=True)
class DueQueue:
    """A queue in which much is due.

    :param client_hash: keyed hash of the client id; empty where no key was given.
    """

    client_hash: str
    messages: int
    unacked: int  # of these messages
    freed_bytes: int


@dataclass(frozen=True, kw_only=True)
class CollectionFound:
    """Findings of a plan besides its counts.

    :param registered: queues that the registry knows.
    :param complete: whether all queues were looked at.
    :param worst: queues in which most is due, worst first.
    """

    registered: int = 0
    complete: bool = True
    worst: tuple[DueQueue, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Restoration:
    """What an undo restored, or in a dry run would restore. Every message in the files is restored or left out.

    :param restored: restored messages.
    :param kept: messages left out: their key has a value now, they were never removed, or they may have been removed
        again.
    :param only_after_rewind: those of ``restored`` that nobody had acknowledged and that the cursor has passed: they
        are delivered only after a rewind.
    """

    maintenance_run_id: str
    dry_run: bool
    files: int
    restored: int
    kept: int
    only_after_rewind: int


@dataclass(frozen=True, kw_only=True)
class PartHeartbeat:
    """Record of the last complete collection of a part of the registry.

    :param retention: rules for queues without their own.
    """

    finished_ms: int
    maintenance_run_id: str
    retention: Retention
    queues: int
    messages: int
    unacked: int


@dataclass(frozen=True, kw_only=True)
class RegistryStatus:
    """The queues that the registry knows.

    :param first_client_id: client of the first queue with messages, by name; none when no such queue was found.
    :param last_client_id: client of the last queue with messages.
    :param is_complete: whether first and last were sought among all queues; otherwise only among a part of them.
    """

    queues: int
    first_client_id: str | None
    last_client_id: str | None
    is_complete: bool


@dataclass(frozen=True, kw_only=True)
class RebuildReport:
    """Result of a search for queues that are missing in the registry.

    :param queues: queues that were found.
    :param registered: queues that were missing and are registered now; in a dry run, queues that are missing.
    """

    queues: int
    registered: int
    dry_run: bool
