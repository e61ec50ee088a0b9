"""Results of the steps of an online migration, counted client by client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from queuekeeper.errors import CheckFailed, QueuekeeperError
from queuekeeper.keyspace import client_slot
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from queuekeeper.sessions.snapshot import Difference


class Outcome(StrEnum):
    """What became of a client."""

    MOVED = "moved"  # it belongs to the other store now
    ALREADY = "already"  # it belonged to the other store before
    LATE = "late"  # its queue could not be copied within the lease; it stays where it is
    BUSY = "busy"  # another driver has fenced it
    DIFFERS = "differs"  # source and copy differed behind the fence; it stays where it is
    KEPT = "kept"  # it has rows that nobody can deliver, and the plan leaves such clients where they are


@dataclass(frozen=True, kw_only=True)
class MoveReport:
    """What was done with one client.

    :param fenced_ms: how long nobody could write to the client; none when it was not fenced.
    :param written: messages copied behind the fence.
    :param removed: messages removed from the copy behind the fence.
    :param differences: remaining differences, without content.
    :param bad: reason by serial of the rows that keep the client where it is.
    """

    client_id: str
    outcome: Outcome
    fenced_ms: float | None = None
    written: int = 0
    removed: int = 0
    differences: tuple[Difference, ...] = ()
    bad: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SyncReport:
    """What a copy without a fence changed, or what a comparison found.

    :param equal: whether source and copy were equal while the source did not change.
    :param messages: live messages that the source holds.
    :param bad: reason by serial of the rows that keep the client where it is; then nothing was copied or compared.
    """

    client_id: str
    equal: bool
    messages: int = 0
    written: int = 0
    removed: int = 0
    set_aside: int = 0
    differences: tuple[Difference, ...] = ()
    bad: Mapping[int, str] = field(default_factory=dict)


_EXAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What a step did with the clients of some cohorts.

    :param clients: clients that the step worked on.
    :param outcomes: clients by outcome: moved, already, late, busy, differs, refused, equal, kept.
    :param written: messages written to the other store.
    :param removed: messages removed from the other store.
    :param set_aside: rows that nobody could deliver, put into the quarantine; of a commit, messages of clients that no
        cluster can hold.
    :param fenced_p50_ms: median of the times that clients were fenced; none when no client was fenced.
    :param examples: clients that could not be moved, or differ, with the reason; at most 20, without content.
    """

    plan_id: str
    step: str
    cohorts: tuple[int, ...]
    clients: int
    outcomes: dict[str, int]
    written: int
    removed: int
    set_aside: int
    fenced_p50_ms: float | None
    fenced_p99_ms: float | None
    fenced_longest_ms: float | None
    seconds: float
    examples: tuple[tuple[str, str], ...] = ()
    at_length: ClassVar[tuple[str, ...]] = ("examples",)

    @property
    def left(self) -> dict[str, int]:
        """Clients that are not where they should be, by outcome."""
        return {word: count for word, count in self.outcomes.items() if word not in _IN_PLACE}

    @property
    def left_words(self) -> str:
        """That clients are not where they should be, in words; empty when all are."""
        left = ", ".join(f"{count:,} {outcome}" for outcome, count in self.left.items())
        return f"not all clients are done: {left}; they stay where they are" if left else ""

    @property
    def fenced_words(self) -> str:
        """For how long clients were fenced, in words; empty when none was."""
        if self.fenced_p50_ms is None:
            return ""
        return (
            f"p50 {self.fenced_p50_ms:,.1f} ms, p99 {self.fenced_p99_ms:,.1f} ms, "
            f"longest {self.fenced_longest_ms:,.1f} ms"
        )

    @property
    def words(self) -> str:
        """What the step did, in one line."""
        outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in self.outcomes.items())
        fenced = self.fenced_words and f"; fenced {self.fenced_words}"
        return f"{self.step}: {number_of(self.clients, 'client')}{outcomes and f', {outcomes}'}{fenced}"

    @property
    def kept(self) -> int:
        """Clients that stay in PostgreSQL: they have bad rows that the plan leaves, or no cluster can hold them."""
        return self.outcomes.get(Outcome.KEPT, 0)


@dataclass(frozen=True, kw_only=True)
class MirrorReport:
    """How far the source is behind the target.

    :param clients: clients that are mirrored.
    :param behind: clients with changes that the source does not have yet.
    :param lag_s: age of the oldest of these changes; 0 when there is none.
    :param written: clients whose changes this pass has written.
    :param refused: clients whose changes the source did not take.
    :param reason: one of these clients with the reason; empty when there is none.
    """

    plan_id: str
    clients: int
    behind: int
    lag_s: float
    written: int
    refused: int = 0
    reason: str = ""

    @property
    def words(self) -> str:
        """How far the source was behind, and what the pass did."""
        return (
            f"behind for {self.behind:,} of {number_of(self.clients, 'client')}, by {self.lag_s:,.1f} s; "
            f"{self.written:,} written, {self.refused:,} refused"
        )


@dataclass(frozen=True, kw_only=True)
class SoakReport(MirrorReport):
    """How far a soak is, and how far the source is behind the target.

    :param begun_ms: when the last of the cohorts began to soak.
    :param left_s: seconds until the soak is over; 0 when it is over.
    """

    begun_ms: int
    left_s: float

    @property
    def is_over(self) -> bool:
        """Whether the soak's time is over."""
        return self.left_s <= 0


@dataclass
class Tally:
    """Counts what movers report.

    :ivar equal_clients: clients that were found equal, by slot.
    :ivar equal_messages: live messages of these clients, by slot.
    :ivar quarantined: messages, by slot, that the commit puts aside, since no cluster can hold their clients.
    :ivar kept: clients that stay in PostgreSQL, with the reason.
    """

    clients: int = 0
    equal_clients: Counter[int] = field(default_factory=Counter)
    equal_messages: Counter[int] = field(default_factory=Counter)
    quarantined: Counter[int] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    written: int = 0
    removed: int = 0
    set_aside: int = 0
    fenced_ms: list[float] = field(default_factory=list)
    examples: list[tuple[str, str]] = field(default_factory=list)
    kept: list[tuple[str, str]] = field(default_factory=list)

    def moved(self, report: MoveReport) -> None:
        """Count a client that a mover tried to move."""
        if report.bad:
            self.stays(report.client_id, _keeping(report.bad))
            return
        self.clients += 1
        self.outcomes[str(report.outcome)] += 1
        self.written += report.written
        self.removed += report.removed
        if report.fenced_ms is not None:
            self.fenced_ms.append(report.fenced_ms)
        if report.outcome not in (Outcome.MOVED, Outcome.ALREADY) and len(self.examples) < _EXAMPLES:
            reason = str(report.differences[0]) if report.differences else _WHY[report.outcome]
            self.examples.append((report.client_id, reason))

    def stays(self, client_id: str, reason: str) -> None:
        """Count a client that stays in PostgreSQL."""
        self.clients += 1
        self.outcomes[str(Outcome.KEPT)] += 1
        if len(self.kept) < _EXAMPLES:
            self.kept.append((client_id, reason))

    def verified(self, report: SyncReport) -> None:
        """Count a client that was compared, and add what was equal to its slot."""
        self.compared(report)
        if report.equal:
            slot = client_slot(report.client_id)
            self.equal_clients[slot] += 1
            self.equal_messages[slot] += report.messages

    def refused(self, client_id: str, error: QueuekeeperError) -> None:
        """Count a client that was refused."""
        self.clients += 1
        self.outcomes["refused"] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append((client_id, str(error)))

    def compared(self, report: SyncReport) -> None:
        """Count a client that was made equal or compared."""
        if report.bad:
            self.stays(report.client_id, _keeping(report.bad))
            return
        self.clients += 1
        self.outcomes["equal" if report.equal else "differs"] += 1
        self.written += report.written
        self.removed += report.removed
        self.set_aside += report.set_aside
        if not report.equal and len(self.examples) < _EXAMPLES:
            self.examples.append((report.client_id, str(report.differences[0])))

    def report(self, plan_id: str, step: str, cohorts: Sequence[int], *, seconds: float) -> StepReport:
        """Return what was counted."""
        fenced = sorted(self.fenced_ms)
        return StepReport(
            plan_id=plan_id,
            step=step,
            cohorts=tuple(cohorts),
            clients=self.clients,
            outcomes=dict(sorted(self.outcomes.items())),
            written=self.written,
            removed=self.removed,
            set_aside=self.set_aside,
            fenced_p50_ms=_quantile(fenced, 0.5),
            fenced_p99_ms=_quantile(fenced, 0.99),
            fenced_longest_ms=fenced[-1] if fenced else None,
            seconds=seconds,
            # Failures come before clients that stay by choice.
            examples=tuple(self.examples + self.kept)[:_EXAMPLES],
        )


_IN_PLACE = frozenset({"moved", "already", "equal", str(Outcome.KEPT)})
_WHY = {
    Outcome.LATE: "its queue could not be copied within the lease: try again when it is shorter or the client is quiet",
    Outcome.BUSY: "another driver has fenced it: try again",
}


def _keeping(bad: Mapping[int, str]) -> str:
    """Return in words which rows keep a client in PostgreSQL, and what to do."""
    rows = ", ".join(f"serial {serial} ({reason.replace('_', ' ')})" for serial, reason in sorted(bad.items())[:3])
    more = f" and {len(bad) - 3:,} more" if len(bad) > 3 else ""
    return (
        f"it stays in PostgreSQL because of rows that nobody can deliver, {rows}{more}: mend them in "
        "device_publish_msg, then cut over again"
    )


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def check_moved(report: StepReport) -> None:
    """Check that all clients are where they should be.

    :raises CheckFailed: when a client is not; names it.
    """
    if report.left:
        example, reason = report.examples[0]
        raise CheckFailed(
            f"{number_of(sum(report.left.values()), 'client')} could not be moved, the first {example!r}: {reason}"
        )


def joined(first: StepReport, second: StepReport) -> StepReport:
    """Return two reports of one step as one; times of fences are those of the first, which had nearly all clients."""
    if not second.clients:
        return first
    # Both reports count the clients that were kept.
    kept = {str(Outcome.KEPT): first.kept}
    outcomes = Counter(first.outcomes) - Counter(kept) + Counter(second.outcomes)
    return StepReport(
        plan_id=first.plan_id,
        step=first.step,
        cohorts=first.cohorts,
        clients=first.clients - first.kept + second.clients,
        outcomes=dict(outcomes),
        written=first.written + second.written,
        removed=first.removed + second.removed,
        set_aside=first.set_aside + second.set_aside,
        fenced_p50_ms=first.fenced_p50_ms,
        fenced_p99_ms=first.fenced_p99_ms,
        fenced_longest_ms=max(first.fenced_longest_ms or 0.0, second.fenced_longest_ms or 0.0),
        seconds=first.seconds + second.seconds,
        examples=tuple(dict.fromkeys(first.examples + second.examples))[:_EXAMPLES],
    )


def staying(committed: int) -> str:
    """Return that a roll-back leaves clients, as a sentence behind another; empty where there are none.

    :param committed: the target's clients that an earlier migration has committed.
    """
    if not committed:
        return ""
    return f" {number_of(committed, 'client')} that an earlier migration has committed would stay the target's."
