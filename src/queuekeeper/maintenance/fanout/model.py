"""Parameters, counts and findings of a repair of fan-out queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from pydantic import field_validator, model_validator

from queuekeeper.errors import UsageError
from queuekeeper.fanout.model import DEFAULT_MAX_STALLS, MAX_MS, check_queue
from queuekeeper.fanout.reports import Problem
from queuekeeper.jobs import common
from queuekeeper.jobs.common import RunParameters
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.parameters import Section, parameter, seconds
from queuekeeper.jobs.shares import share_names
from queuekeeper.keyspace import FANOUT_PARTS
from queuekeeper.report.figures import number

MAX_QUEUES = 10_000
"""Most queues that a run can name; a run for all queues names none."""

_NAMES = {
    "overdue_leases": "Leases that had run out",
    "expired_messages": "Expired messages",
    "expired_dead": "Dead letters past their retention",
    "expired_references": "Ids that waited for expired messages",
    "missing_payload": "References without payload",
    "unreferenced_payload": "Payloads without reference",
    "wrong_count": "Reference counts that had drifted",
    "wrong_expiry": "Messages that should expire and do not, or the other way round",
    "lost_lease": "Leases that nobody could end",
    "doubled": "Messages that a consumer had twice",
    "left_notes": "Notes on messages that are gone",
    "half_removed": "Consumers half removed",
    "half_registered": "Consumers half registered",
    "idle_consumers": "Consumers unseen for too long",
    "broken_queues": "Queues that cannot be repaired",
}


class FanoutRepairParameters(RunParameters):
    """Parameters of a repair."""

    queues: tuple[str, ...] = parameter(
        (),
        title="Queues",
        help="Names of the queues to repair.",
        unset="all queues of the server",
        noun="QUEUE",
        most=MAX_QUEUES,
        longest=255,
        rule="each must be the name of a queue: 1 to 255 characters without control characters",
        check=check_queue,
        examples=[None, ["orders"]],
    )
    unregister: bool = parameter(
        True,
        title="Remove dead consumers",
        help="Remove each consumer that has not been seen for the time in its own options, with the messages that "
        "wait for it alone. A consumer whose options name no time is shown and stays. If this is off, all stay.",
        section=Section.RULES,
    )
    idle_expiry_s: int | None = seconds(
        None,
        title="Dead after",
        help="Seconds after which a consumer that has not been seen is dead, where its own options name no time. Goes "
        "with unregister.",
        unset="such a consumer is never removed",
        section=Section.RULES,
        most=MAX_MS // 1_000,
        examples=[None, 604_800],
    )
    max_stalls: int = parameter(
        DEFAULT_MAX_STALLS,
        title="Stalls",
        help="A message whose lease ran out more often than this becomes a dead letter.",
        section=Section.RULES,
        least=0,
        most=1_000_000,
    )
    max_operations_per_s: int | None = common.max_operations_per_s(
        50_000, counted="Calls and ids of messages", examples=(None, 10_000, 50_000)
    )
    shares: int = common.shares(4, most=FANOUT_PARTS, shared="How many tasks share the queues.")

    @field_validator("queues")
    @classmethod
    def _each_once(cls, queues: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(queues)))

    @model_validator(mode="after")
    def _no_expiry_where_nobody_goes(self) -> Self:
        if self.idle_expiry_s is not None and not self.unregister:
            raise UsageError(
                "idle_expiry_s says which consumers to remove, and unregister not to remove any: leave one of them out"
            )
        return self

    @property
    def idle_expiry_ms(self) -> int | None:
        """Longest time that a consumer without such an option may be unseen, in milliseconds."""
        return None if self.idle_expiry_s is None else 1_000 * self.idle_expiry_s

    def share_names(self) -> list[str]:
        """Return the shares of the work: ranges of parts of the queues."""
        return share_names(self.shares, parts=FANOUT_PARTS)


@dataclass(kw_only=True)
class QueueCounts(Counts):
    """What was looked at in queues, and what their consumers and producers had left to do.

    :ivar queues: queues that were looked at.
    :ivar changed_queues: queues in which there was something to do.
    :ivar consumers: consumers of all queues.
    :ivar messages: messages of all queues.
    :ivar overdue_leases: leases that had run out; their messages are next in line, or dead letters.
    :ivar expired_messages: messages that had expired.
    :ivar expired_dead: dead letters whose retention was over.
    :ivar expired_references: ids of expired messages that still waited for consumers.
    """

    looked_at: ClassVar[frozenset[str]] = frozenset({"queues", "consumers", "messages"})

    queues: int = 0
    changed_queues: int = 0
    consumers: int = 0
    messages: int = 0
    overdue_leases: int = 0
    expired_messages: int = 0
    expired_dead: int = 0
    expired_references: int = 0


@dataclass(kw_only=True)
class FanoutRepairCounts(QueueCounts):
    """Counts of what a plan found in queues, or a repair did; the fields added here are mostly faults.

    :ivar missing_payload: messages that are gone although an ack is still counted for them.
    :ivar unreferenced_payload: messages for which no consumer owes an ack.
    :ivar wrong_count: wrong counts of owed acks.
    :ivar wrong_expiry: messages without an expiry, or expiries without a message.
    :ivar lost_lease: leases without a token, which nobody could end.
    :ivar doubled: messages that a consumer had twice.
    :ivar left_notes: notes on messages that a consumer no longer has.
    :ivar half_removed: consumers whose removal was not finished.
    :ivar half_registered: consumers that had not yet got all earlier messages, and so claimed nothing.
    :ivar idle_consumers: consumers that were removed, or are to be, since they were not seen for too long.
    :ivar broken_queues: queues that could not be repaired; the log says why.
    """

    missing_payload: int = 0
    unreferenced_payload: int = 0
    wrong_count: int = 0
    wrong_expiry: int = 0
    lost_lease: int = 0
    doubled: int = 0
    left_notes: int = 0
    half_removed: int = 0
    half_registered: int = 0
    idle_consumers: int = 0
    broken_queues: int = 0

    def add_problems(self, problems: Mapping[Problem, int]) -> None:
        """Add the faults that were found in a queue."""
        for problem, count in problems.items():
            setattr(self, problem.value, getattr(self, problem.value) + count)

    @property
    def faults(self) -> int:
        """Number of faults, which healthy queues never have."""
        return sum(getattr(self, problem.value) for problem in Problem)

    @property
    def changes(self) -> int:
        """Number of all changes."""
        return super().changes - self.changed_queues - self.broken_queues

    @property
    def broken(self) -> int:
        """Queues that cannot be repaired."""
        return self.broken_queues

    @property
    def removed(self) -> int:
        """Number of messages that are removed."""
        return self.expired_messages + self.expired_dead + self.unreferenced_payload

    def rows(self) -> list[tuple[str, str]]:
        """Return the counts as names and texts."""
        looked_at = f"{number(self.queues)}, {number(self.changed_queues)} with something to do"
        return [("Queues looked at", looked_at), *((_NAMES[name], number(getattr(self, name))) for name in _NAMES)]


@dataclass(frozen=True, kw_only=True)
class WorstQueue:
    """A queue in which there is much to do."""

    queue: str
    changes: int
    faults: int
    messages: int


@dataclass(frozen=True, kw_only=True)
class UnseenConsumer:
    """A consumer with waiting messages that was not seen for a day.

    :param unseen_s: seconds since the consumer was last seen.
    :param waiting: messages that wait for the consumer.
    """

    queue: str
    consumer: str
    unseen_s: int
    waiting: int


@dataclass(frozen=True, kw_only=True)
class FanoutRepairFound:
    """Findings of a plan besides its counts.

    :param worst: queues in which most is to be done.
    :param unseen: consumers that may be dead, with the most messages first, whether or not they are to be removed.
    """

    worst: tuple[WorstQueue, ...] = ()
    unseen: tuple[UnseenConsumer, ...] = ()
