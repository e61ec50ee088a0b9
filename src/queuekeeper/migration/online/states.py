"""Where a cohort stands on its way to Redis, which steps lead on and back, and what undoes each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from queuekeeper.errors import RefusedError


class OnlineState(StrEnum):
    """Where a cohort stands."""

    PLANNED = "planned"  # PostgreSQL serves; nothing was copied
    COPYING = "copying"  # PostgreSQL serves and knows who owns each client; copies are made in Redis
    CAUGHT_UP = "caught_up"  # every client's copy was equal when it was last looked at
    VERIFIED = "verified"  # every client's copy was compared and found equal; may be cut over
    CUTTING_OVER = "cutting_over"  # clients change their owner, one by one
    ON_REDIS = "on_redis"  # Redis serves; every change is mirrored to PostgreSQL
    SOAKING = "soaking"  # as before, and all cohorts are; it is watched for a while
    COMMITTED = "committed"  # Redis serves; the mirror has ended
    ROLLING_BACK = "rolling_back"  # clients go back to PostgreSQL, one by one


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A step from one state to another.

    :param verb: what is done, as command and task say it.
    :param undo: what takes it back, or that nothing does.
    """

    before: OnlineState
    after: OnlineState
    verb: str
    undo: str


EDGES = (
    Edge(
        before=OnlineState.PLANNED,
        after=OnlineState.COPYING,
        verb="arm",
        undo="disarm: PostgreSQL serves as before; the copies in Redis stay, and nobody can use them",
    ),
    Edge(
        before=OnlineState.COPYING,
        after=OnlineState.CAUGHT_UP,
        verb="catch up",
        undo="none is needed: PostgreSQL serves, a copy may be made again at any time",
    ),
    Edge(
        before=OnlineState.CAUGHT_UP,
        after=OnlineState.VERIFIED,
        verb="verify",
        undo="none is needed: it only reads",
    ),
    Edge(
        before=OnlineState.VERIFIED,
        after=OnlineState.CUTTING_OVER,
        verb="cut over",
        undo="roll back: each client is fenced, what Redis holds is written to PostgreSQL and compared",
    ),
    Edge(
        before=OnlineState.CUTTING_OVER,
        after=OnlineState.ON_REDIS,
        verb="cut over",
        undo="roll back",
    ),
    Edge(
        before=OnlineState.ON_REDIS,
        after=OnlineState.SOAKING,
        verb="soak",
        undo="roll back",
    ),
    Edge(
        before=OnlineState.SOAKING,
        after=OnlineState.COMMITTED,
        verb="commit",
        undo="there is none: changes no longer reach PostgreSQL, and a way back is a new migration",
    ),
    # Back.
    Edge(
        before=OnlineState.COPYING,
        after=OnlineState.PLANNED,
        verb="disarm",
        undo="arm: copies are made again",
    ),
    Edge(
        before=OnlineState.CAUGHT_UP,
        after=OnlineState.PLANNED,
        verb="disarm",
        undo="arm: copies are made again",
    ),
    Edge(
        before=OnlineState.VERIFIED,
        after=OnlineState.PLANNED,
        verb="disarm",
        undo="arm: copies are made again",
    ),
    Edge(
        before=OnlineState.CAUGHT_UP,
        after=OnlineState.COPYING,
        verb="catch up",
        undo="none is needed",
    ),
    Edge(
        before=OnlineState.VERIFIED,
        after=OnlineState.COPYING,
        verb="catch up",
        undo="none is needed",
    ),
    Edge(
        before=OnlineState.CUTTING_OVER,
        after=OnlineState.ROLLING_BACK,
        verb="roll back",
        undo="finish it, then cut over again",
    ),
    Edge(
        before=OnlineState.ON_REDIS,
        after=OnlineState.ROLLING_BACK,
        verb="roll back",
        undo="finish it, then cut over again",
    ),
    Edge(
        before=OnlineState.SOAKING,
        after=OnlineState.ROLLING_BACK,
        verb="roll back",
        undo="finish it, then cut over again",
    ),
    Edge(
        before=OnlineState.ROLLING_BACK,
        after=OnlineState.COPYING,
        verb="roll back",
        undo="cut over again: catch up and verify come first",
    ),
)

ON_POSTGRES = frozenset({OnlineState.PLANNED, OnlineState.COPYING, OnlineState.CAUGHT_UP, OnlineState.VERIFIED})
"""All clients belong to PostgreSQL."""

MIRRORED = frozenset({OnlineState.CUTTING_OVER, OnlineState.ON_REDIS, OnlineState.SOAKING, OnlineState.ROLLING_BACK})
"""Clients may belong to Redis, and what changes there goes to PostgreSQL."""


BEGINS: Mapping[str, tuple[OnlineState, ...]] = {
    "cut over": (OnlineState.VERIFIED, OnlineState.CUTTING_OVER),
    "roll back": tuple(MIRRORED),
    "commit": (OnlineState.SOAKING,),
}
"""In which states steps begin that a person is asked about."""


def ends(verb: str, *, leaves_clients: bool) -> tuple[OnlineState, ...]:
    """Return in which states one of these steps has come to its end, or not quite.

    :param leaves_clients: whether the plan leaves some in PostgreSQL; they may come as long as the mirror is kept up.
    """
    if verb == "cut over":
        return (OnlineState.ON_REDIS, *((OnlineState.SOAKING,) if leaves_clients else ()))
    return (OnlineState.COMMITTED,) if verb == "commit" else ()


def edge(before: OnlineState, after: OnlineState) -> Edge:
    """Return the step from one state to another.

    :raises RefusedError: when there is none; names the steps that there are.
    """
    for each in EDGES:
        if (each.before, each.after) == (before, after):
            return each
    found = [f"{each.verb} ({each.after})" for each in EDGES if each.before is before]
    possible = f"from there one can {', '.join(found)}" if found else "there is no way on from there, and none back"
    raise RefusedError(f"a cohort that is {before} cannot become {after}: {possible}")


def check_states(states: Iterable[tuple[int, OnlineState]], allowed: Iterable[OnlineState], *, verb: str) -> None:
    """Check that cohorts are where a step may begin.

    :raises RefusedError: naming the first cohort that is not, and the states in which the step is possible.
    """
    wanted = tuple(allowed)
    for cohort, state in states:
        if state in wanted:
            continue
        names = " or ".join(str(each) for each in wanted)
        reason = f"cohort {cohort} is {state}: to {verb} it has to be {names}"
        if state is OnlineState.COMMITTED:
            reason += "; what is committed has no way back but a new migration"
        elif state in ON_POSTGRES and verb == "cut over":
            reason += "; catch up and verify come first"
        raise RefusedError(reason)
