"""What a golden defect is: where it was published, what it leaves in data, which check must find it, and in whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

StageT = TypeVar("StageT")

REDIS = "sessions_redis"
POSTGRES = "sessions_postgres"
BOTH = "source_against_target"


class Finding(NamedTuple):
    """A check of a suite that a queue must fail."""

    suite: str
    check_id: str
    client_id: str


@dataclass(frozen=True, kw_only=True)
class Defect(Generic[StageT]):
    """A published defect that can be acted out.

    :param title: what goes wrong, in a few words.
    :param published: release and place where anybody can read it.
    :param trace: what it leaves in data.
    :param act: acts it out; it yields where short lives have to end first.
    :param clients: whose queues it touches.
    :param finds: all that the suites must find in these queues.
    :param remains: what they find in these queues also when our stores were given the same events: no damage there.
    :param ours: tests that show that our stores and our migration do not have it.
    """

    id: str
    title: str
    published: str
    trace: str
    act: Callable[[StageT], Iterator[None] | None]
    clients: tuple[str, ...]
    finds: frozenset[Finding]
    remains: frozenset[Finding] = frozenset()
    ours: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Untold:
    """A published defect that no check of sessions can find.

    :param reason: what it leaves instead of a trace.
    :param ours: tests that show that ours do not have it.
    """

    title: str
    published: str
    reason: str
    ours: tuple[str, ...]


def found_in(suite: str, client_id: str, *check_ids: str) -> frozenset[Finding]:
    """Return findings of one suite in one queue."""
    return frozenset(Finding(suite, check_id, client_id) for check_id in check_ids)


def act_out(defects: Iterable[Defect[StageT]], stage: StageT, *, short_life_s: float) -> None:
    """Act defects out on a stage, and wait once for all lives that have to end."""
    unfinished = [rest for defect in defects if (rest := defect.act(stage)) is not None]
    for rest in unfinished:
        next(rest)
    if unfinished:
        time.sleep(short_life_s)
    for rest in unfinished:
        for _ in rest:
            raise AssertionError("a defect waits once at most")
