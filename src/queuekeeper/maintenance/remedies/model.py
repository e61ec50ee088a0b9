"""What a remedy is asked for, what it plans and what it reports, as frozen records; no server is asked here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from queuekeeper.jobs import common
from queuekeeper.jobs.parameters import MAX_SECONDS, Parameters, Section, parameter

if TYPE_CHECKING:
    from queuekeeper.maintenance.remedies.world import World

REMEDY_NAMES = (
    "repair_counter",
    "repair_ttl",
    "reorder_from_source",
    "unlink_orphans",
    "remove_duplicates",
    "rekey_clients",
    "trim_dead_first",
    "quarantine_messages",
    "replay_quarantined",
)
"""All remedies, as forms, commands and checks name them."""

EXAMPLES = 20
"""Effects that a plan shows in full; it counts them all."""

_NUMBER = re.compile(r"-?([0-9]{1,17}(\.[0-9]{1,17})?(e[+-][0-9]{1,3})?|inf)", re.ASCII)
_HIDDEN = {"member", "references", "last_score", "last_serial"}


class QueueRefused(Exception):
    """One queue cannot be treated; the others can."""


class RemedyParameters(Parameters):
    """What a remedy goes by."""

    default_ttl_s: int = common.default_ttl_s()
    limit: int = common.limit()
    keep_s: int = parameter(
        604_800,
        title="Keep what is set aside (seconds)",
        help="Seconds that records are kept that were set aside, unless they expire before.",
        section=Section.RECORDS,
        least=1,
        most=MAX_SECONDS,
    )
    grace_s: int = parameter(
        600,
        title="Grace (seconds)",
        help="Seconds that messages stay whose life is over already, so that exchanges under way end and the change "
        "can be taken back. A record without a reference must be as old to be treated.",
        section=Section.RULES,
        least=1,
        most=MAX_SECONDS,
    )
    key_prefix: str = common.key_prefix()


@dataclass(frozen=True, kw_only=True)
class Queue:
    """One session to treat.

    :param client_hash: its name in plans, reports and logs.
    """

    client_id: str = field(repr=False)
    client_hash: str


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One thing that a remedy would change, exactly.

    :param kind: what is done, in words; plans count by it.
    :param packet_id: packet id that the message's key names; none for what has none.
    :param serial: score of its reference, as the server writes it; empty for what has no reference.
    :param before: what is there now.
    :param after: what will be there.
    :param expires_at_ms: when the record expires now, -1 for never; none where that plays no part.
    :param twin: packet id of the message that this one repeats.
    :param twin_serial: its serial.
    :param references: members of the queue's set when it was read; none where other messages play no part.
    :param last_score: score of the last of them then.
    :param last_serial: serial of the last of them once all is done.
    :param member: reference that is no good payload key of its session; kept out of plans and logs.
    """

    kind: str
    packet_id: int | None = None
    serial: str = ""
    before: int | str | None = None
    after: int | str | None = None
    expires_at_ms: int | None = None
    twin: int | None = None
    twin_serial: str = ""
    references: int | None = field(default=None, compare=False)
    last_score: str = field(default="", compare=False)
    last_serial: int | None = field(default=None, compare=False)
    member: str = field(default="", repr=False)

    def shown(self, client_hash: str) -> dict[str, Any]:
        """Return it as people see it."""
        facts = {name: value for name, value in asdict(self).items() if name not in _HIDDEN and value not in (None, "")}
        # What is stored in place of a number may be any text, and anybody's.
        for name in {"before", "after"} & facts.keys():
            if not _NUMBER.fullmatch(str(facts[name])):
                facts[name] = "no number"
        return {"client_hash": client_hash} | facts


@dataclass(frozen=True, kw_only=True)
class QueuePlan:
    """What would become of one queue.

    :param effects: number of effects by kind.
    :param refused: why nothing can be done; empty when it can.
    """

    client_hash: str
    effects: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class RemedyPlan:
    """What a remedy would do.

    :param queues: those with something to mend, or with a reason why they cannot be.
    :param looked_at: queues that were looked at.
    :param examples: some effects in full.
    :param undo: how it can be undone, or that it cannot.
    """

    remedy: str
    parameters: RemedyParameters
    looked_at: int
    queues: tuple[QueuePlan, ...]
    examples: tuple[Mapping[str, Any], ...]
    undo: str

    @property
    def effects(self) -> dict[str, int]:
        """Number of effects by kind, over all queues."""
        return total(queue.effects for queue in self.queues)

    @property
    def refusals(self) -> dict[str, int]:
        """Number of queues by the reason why they cannot be treated."""
        return dict(sorted(Counter(queue.refused for queue in self.queues if queue.refused).items()))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not any(queue.effects for queue in self.queues)

    def as_record(self) -> dict[str, Any]:
        """Return it as JSON keeps it; the same findings give the same record."""
        return {
            "remedy": self.remedy,
            "looked_at": self.looked_at,
            "effects": self.effects,
            "refusals": self.refusals,
            "queues": [asdict(queue) for queue in self.queues],
            "examples": [dict(example) for example in self.examples],
            "undo": self.undo,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], parameters: RemedyParameters) -> RemedyPlan:
        """Return what :meth:`as_record` wrote."""
        return cls(
            remedy=record["remedy"],
            parameters=parameters,
            looked_at=record["looked_at"],
            queues=tuple(QueuePlan(**queue) for queue in record["queues"]),
            examples=tuple(record["examples"]),
            undo=record["undo"],
        )


@dataclass(frozen=True, kw_only=True)
class RemedyReport:
    """What a remedy did.

    :param queues: queues that were treated, earlier tries of the run included.
    :param done: effects by kind, likewise.
    :param moved_on: effects by kind that were planned and not done: planned = done + moved on.
    :param changed: those of them that no longer fitted when their turn came: somebody else was faster.
    :param not_planned: effects found now that the plan did not have; plan again for them.
    :param refusals: queues by the reason why they could not be treated.
    :param undo_file: what takes it back; empty when there is nothing to take back.
    """

    remedy: str
    queues: int
    done: Mapping[str, int]
    moved_on: Mapping[str, int]
    changed: int
    not_planned: int
    refusals: Mapping[str, int]
    undo_file: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a remedy has come, over all tries of its run.

    :param queue: hash of the queue that was begun last; those before it, in the order of hashes, are finished.
    :param in_queue: effects done in that queue by kind.
    :param looked_at: queues gone through, that one included.
    :param queues: queues that were treated.
    :param done: effects by kind.
    """

    queue: str = ""
    in_queue: Mapping[str, int] = field(default_factory=dict)
    looked_at: int = 0
    queues: int = 0
    done: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class UndoReport:
    """What became of the lines of an undo file.

    :param restored: effects that were taken back.
    :param left: effects that were not, by reason.
    """

    remedy: str
    dry_run: bool
    restored: int
    left: Mapping[str, int]


class Remedy(Protocol):
    """One way to mend queues; each is a module beside this one, and ``run`` does what all have in common.

    :cvar name: of :data:`REMEDY_NAMES`.
    :cvar purpose: what it does, in a sentence.
    :cvar undo_words: how it can be undone, or that it cannot.
    :cvar can_undo: whether :meth:`undo` does anything.
    :cvar looks_by: scripts by which it looks, beside those that all use.
    :cvar writes_by: scripts by which it writes.
    :cvar reads_source: whether it needs PostgreSQL with TBMQ's tables.
    :cvar whole: whether the effects of a queue are given to :meth:`apply` and :meth:`undo` all at once, and only when
        all of them were planned: it takes the steps itself, and stops at the first that no longer fits.
    :cvar reads_back: whether :meth:`apply` reads what it has written, so that it cannot be asked what it would do: a
        plan then says what was found.
    """

    name: ClassVar[str]
    purpose: ClassVar[str]
    undo_words: ClassVar[str]
    can_undo: ClassVar[bool]
    looks_by: ClassVar[frozenset[str]]
    writes_by: ClassVar[frozenset[str]]
    reads_source: ClassVar[bool]
    whole: ClassVar[bool]
    reads_back: ClassVar[bool]

    def survey(self, world: World, queues: Sequence[Queue]) -> Mapping[str, Sequence[int]]:
        """Return, by client id, what only a walk over all keys finds; empty where none is needed."""
        ...

    def find(self, world: World, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return what would be done, in the order in which it would.

        :raises QueueRefused: when the queue cannot be treated.
        """
        ...

    def apply(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Do it, each effect only where it still fits, and say for each whether it was done."""
        ...

    def undo(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Take effects back where nobody has touched the place since; an empty text for each that was.

        Otherwise the text says why it was not.
        """
        ...


class SimpleRemedy:
    """What most remedies have in common."""

    name: ClassVar[str]
    purpose: ClassVar[str]
    undo_words: ClassVar[str]
    can_undo: ClassVar[bool] = True
    looks_by: ClassVar[frozenset[str]] = frozenset()
    writes_by: ClassVar[frozenset[str]]
    reads_source: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    reads_back: ClassVar[bool] = False

    def survey(self, world: World, queues: Sequence[Queue]) -> Mapping[str, Sequence[int]]:
        """Return nothing: the queue itself says all."""
        return {}

    def undo(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Leave everything as it is."""
        return ["there is no undo"] * len(effects)


def total(counts: Any) -> dict[str, int]:
    """Return the sum of several counts, by name."""
    found: Counter[str] = Counter()
    for each in counts:
        found.update(each)
    return dict(sorted(found.items()))
