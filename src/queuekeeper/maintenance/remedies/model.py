"""Parameters, findings and counts of remedies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from queuekeeper.jobs import common
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.parameters import Parameters, Section, parameter, seconds


class Purpose(NamedTuple):
    """What a remedy is for: its first sentence says it all to who knows remedies.

    :param undo: how the remedy can be undone, or that it cannot.
    """

    text: str
    undo: str

    @property
    def in_short(self) -> str:
        """The first sentence."""
        return f"{self.text.partition('. ')[0].rstrip('.')}."


PURPOSES = {
    "repair_counter": Purpose(
        "Move the last packet id forward to that of the newest message. It is set where it is missing, goes past "
        "packet ids that the broker would give out twice, and is never moved back.",
        undo="There is none: a counter moved back would give out packet ids of waiting messages again.",
    ),
    "repair_state": Purpose(
        "Work the state of packed sessions out again from their messages. First and last serial, counts, sizes, "
        "expiries and packet ids in use are those of the messages that are there; what they do not tell stays.",
        undo="There is none: with the old state, messages would be lost.",
    ),
    "repair_ttl": Purpose(
        "Let messages expire when their own time and expiry, or the default expiry, say so. Only those without an "
        "expiry or with a later one are changed: no expiry is made later.",
        undo="Messages that still exist get their old expiry back.",
    ),
    "reorder_from_source": Purpose(
        "Put messages back into the order of PostgreSQL's serials. They get the serials of their rows there, and later "
        "messages come behind them. A queue whose rows in the source do not suffice is refused.",
        undo="References get their old serials back, if none of them has changed since and no newer message would come "
        "between them.",
    ),
    "unlink_orphans": Purpose(
        "Set records aside that no reference names. They are taken out of their sessions and kept under another name "
        "for a while.",
        undo="Records get their names and expiries back while they are kept; they stay on the server, so their memory "
        "is freed when that time is over.",
    ),
    "remove_duplicates": Purpose(
        "Set messages aside that repeat an earlier one; the oldest stays. Those with the same topic, time and payload "
        "go into the session's quarantine; the server compares them, and no content leaves it.",
        undo="Messages come back to their places while they are kept in quarantine.",
    ),
    "rekey_clients": Purpose(
        "Move sessions of ids that begin with } or % from an earlier build's keys. Builds before release 0.1 encoded "
        "these ids, and TBMQ does not. Messages of a client whose real id equals the encoded id stay where they are.",
        undo="There is none: nobody reads the old keys. Each copy is compared before its original is removed.",
    ),
    "trim_dead_first": Purpose(
        "Bring queues down to the limit, dead references first. Then the oldest messages are removed.",
        undo="There is none: trimmed messages are removed. Export the sessions before (queuekeeper sessions export).",
    ),
    "quarantine_messages": Purpose(
        "Set records aside that nobody can read, or that belong elsewhere. Those that are no message, belong to "
        "another client or packet id, or whose packet id is out of range, go into the session's quarantine.",
        undo="Records come back to their places while they are kept; a reference without a record stays removed.",
    ),
    "replay_quarantined": Purpose(
        "Bring records back from the quarantine that can be read now. They go back to their serials where their places "
        "are free and no message of the session repeats them.",
        undo="Messages go back into quarantine while they wait.",
    ),
}
"""Purpose of each remedy, by its name in forms, commands and checks."""

REMEDY_NAMES = tuple(PURPOSES)

EXAMPLES = 20
"""Effects that a plan shows in full; it counts them all."""

_NUMBER = re.compile(r"-?([0-9]{1,17}(\.[0-9]{1,17})?(e[+-][0-9]{1,3})?|inf)", re.ASCII)
_HIDDEN = {"member", "references", "last_score", "last_serial"}


def text_of(stored: bytes) -> str:
    """Return any bytes of a server as text for JSON."""
    return stored.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Return the bytes of which :func:`text_of` has made a text."""
    return text.encode("utf-8", "surrogateescape")


class QueueRefused(Exception):
    """The queue cannot be mended; other queues are not affected."""


NEWEST = "latest"
"""Stands for the newest quality run."""


class Selection(Parameters):
    """A choice among the queues of a quality run."""

    quality_run_id: str = parameter(
        "",
        title="Quality run",
        help="Treat the queues that failed the remedy's check in this quality run. Write latest for the newest run; a "
        "form may leave this empty.",
        form_pattern=r"^[0-9A-Za-z_.:+\-]*$",
        rule="it must be the id of a quality run, at most 200 characters; a form takes letters, digits and _ . : + -",
        longest=200,
        noun="RUN",
        examples=["3f2a9c0d11e47b58"],
    )
    cohorts: str = common.cohorts(what="Treat only queues of these cohorts, as the profile has cut them.")
    client_hashes: tuple[str, ...] = parameter(
        (),
        title="Queues",
        help="Treat only these queues, by their names in reports, whether or not they failed the check.",
        unset="all queues that failed",
        pattern="^[0-9a-f]{16}$",
        rule="each must be the name of a queue in reports: 16 hex digits",
        noun="HASH",
        examples=[["0123456789abcdef"]],
    )


def throttle() -> Any:
    """Declare the throttle of a remedy; the form proposes a careful one, the command has none."""
    return common.max_operations_per_s(
        None, proposed=5_000, counted="Keys asked for, by plan and repair,", examples=(None, 1_000, 20_000)
    )


class RemedyParameters(Selection):
    """Parameters of a remedy."""

    default_ttl_s: int = common.default_ttl_s()
    limit: int = common.limit()
    keep_s: int = seconds(
        604_800,
        title="Keep what is set aside",
        help="Seconds for which records that were set aside are kept, unless they expire before.",
        section=Section.RECORDS,
    )
    grace_s: int = common.grace_s(
        600,
        help="Seconds for which an expired message stays, so that exchanges under way can end and the change can be "
        "undone. A record without a reference is treated once it is this old.",
    )
    max_operations_per_s: int | None = throttle()
    max_run_minutes: int | None = common.max_run_minutes()
    key_prefix: str = common.key_prefix()


class RepairWish(Parameters):
    """Parameters of the remedies' DAG besides the choice of queues."""

    remedy: str = parameter(
        REMEDY_NAMES[0],
        title="Remedy",
        help="The remedy to apply. The plan says how it can be undone, or that it cannot.",
        choices={name: f"{name}: {purpose.text}" for name, purpose in PURPOSES.items()},
    )
    max_operations_per_s: int | None = throttle()
    key_prefix: str = common.key_prefix()


@dataclass(frozen=True, kw_only=True)
class Queue:
    """One session to mend.

    :param client_hash: name of the session in plans, reports and logs.
    """

    client_id: str = field(repr=False)
    client_hash: str


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One exact change of a remedy.

    :param kind: the change in words; plans count effects by kind.
    :param packet_id: packet id in the message's key; none where the key has none.
    :param serial: score of the reference, as the server writes it; empty where there is no reference.
    :param before: present value.
    :param after: new value.
    :param expires_at_ms: when the record expires now, -1 for never; none where the expiry does not matter.
    :param twin: packet id of the message that this one repeats.
    :param twin_serial: serial of that message.
    :param references: number of references in the queue when it was read; none where they do not matter.
    :param last_score: score of the last reference then.
    :param last_serial: serial of the last reference once all effects are made.
    :param member: reference that is not a valid payload key of its session; kept out of plans and logs.
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

    @property
    def raw_member(self) -> bytes:
        """The reference's bytes; see :func:`text_of`."""
        return bytes_of(self.member)

    def shown(self, client_hash: str) -> dict[str, Any]:
        """Return the effect as it is shown to people."""
        facts = {name: value for name, value in asdict(self).items() if name not in _HIDDEN and value not in (None, "")}
        # A stored value that is no number may be any text, even content, so it is not shown.
        for name in {"before", "after"} & facts.keys():
            if not _NUMBER.fullmatch(str(facts[name])):
                facts[name] = "no number"
        return {"client_hash": client_hash} | facts


@dataclass(kw_only=True)
class RemedyCounts(Counts):
    """Counts of what was found or done, by queue and by kind of effect.

    :ivar queues: queues that are done.
    :ivar treated: those of ``queues`` with something to do.
    :ivar changed: effects that were not made, since somebody had changed the place meanwhile.
    :ivar not_planned: effects found during the work that were not in the plan; plan again for them.
    :ivar effects: number of effects by kind.
    :ivar refusals: number of queues by the reason why they cannot be mended.
    :ivar in_queue: effects by kind in a queue that is not done yet.
    """

    queues: int = 0
    treated: int = 0
    changed: int = 0
    not_planned: int = 0
    effects: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    in_queue: dict[str, int] = field(default_factory=dict)

    def add(self, other: Self) -> None:
        """Add other counts."""
        for name in ("queues", "treated", "changed", "not_planned"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.effects = _sum(self.effects, other.effects)
        self.refusals = _sum(self.refusals, other.refusals)
        self.in_queue = {} if other.queues else _sum(self.in_queue, other.effects)

    def add_changes(self, other: Self) -> None:
        """Add the changes of an interrupted step that will be repeated."""
        self.effects = _sum(self.effects, other.effects)
        self.in_queue = _sum(self.in_queue, other.effects)

    def moved_on(self, done: Self) -> dict[str, int]:
        """Return, by kind, how much of a plan was not done: planned = done + moved on."""
        left = {kind: count - done.effects.get(kind, 0) for kind, count in self.effects.items()}
        return {kind: count for kind, count in left.items() if count > 0}

    @property
    def changes(self) -> int:
        """All effects."""
        return sum(self.effects.values())

    def rows(self) -> list[tuple[str, str]]:
        """Return the counts as pairs of name and text."""
        figures = {"sessions looked at": self.queues, "sessions treated": self.treated, **self.effects}
        figures |= {"changed meanwhile": self.changed, "not in the plan": self.not_planned}
        figures |= {f"not treated: {reason}": count for reason, count in self.refusals.items()}
        return [(name, f"{count:,}") for name, count in figures.items()]


@dataclass(frozen=True, kw_only=True)
class QueuePlan:
    """Plan of one queue.

    :param effects: number of effects by kind.
    :param refused: why the queue cannot be mended, or not completely; empty when it can.
    """

    client_hash: str
    effects: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class RemedyFound:
    """Findings of a plan besides its counts.

    :param queues: queues with something to mend, or with a reason why they cannot be mended.
    :param examples: some effects in full.
    """

    queues: tuple[QueuePlan, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ()

    @property
    def to_mend(self) -> dict[str, Mapping[str, int]]:
        """Effects by kind of each queue in which there is something to do."""
        return {queue.client_hash: queue.effects for queue in self.queues if queue.effects}


@dataclass(frozen=True, kw_only=True)
class UndoReport:
    """Result of an undo.

    :param restored: effects that were undone.
    :param left: number of effects that were not undone, by reason.
    """

    remedy: str
    dry_run: bool
    restored: int
    left: Mapping[str, int]


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted((Counter(one) + Counter(other)).items()))
