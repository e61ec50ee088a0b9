"""The states of a cohort on its way to Redis, the steps between them, and what undoes each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from queuekeeper.errors import RefusedError


class OnlineState(StrEnum):
    """State of a cohort."""

    PLANNED = "planned"  # PostgreSQL serves; nothing was copied
    COPYING = "copying"  # PostgreSQL serves and knows who owns each client; copies are made in Redis
    CAUGHT_UP = "caught_up"  # every client's copy was equal when it was last read
    VERIFIED = "verified"  # every client's copy was compared and found equal; may be cut over
    CUTTING_OVER = "cutting_over"  # clients change their owner, one by one
    ON_REDIS = "on_redis"  # Redis serves; every change is mirrored to PostgreSQL
    SOAKING = "soaking"  # Redis serves, changes are mirrored, and the cohort is watched for a while
    COMMITTED = "committed"  # Redis serves; the mirror has ended
    ROLLING_BACK = "rolling_back"  # clients go back to PostgreSQL, one by one


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A step from one state to another.

    :param verb: name of the step, as commands and tasks call it.
    :param undo: how to undo the step, or that it cannot be undone.
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
        undo="disarm: PostgreSQL serves as before; the copies stay in Redis, where nobody can use them",
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
        undo="none is needed: the step only reads",
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
        undo="there is none: changes no longer reach PostgreSQL, and only a new migration leads back",
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
"""States in which the steps begin that a person is asked about."""


def ends(verb: str, *, leaves_clients: bool) -> tuple[OnlineState, ...]:
    """Return the states in which a step is done or nearly done.

    :param leaves_clients: whether the plan leaves clients in PostgreSQL; these may be cut over until the commit.
    """
    if verb == "cut over":
        return (OnlineState.ON_REDIS, *((OnlineState.SOAKING,) if leaves_clients else ()))
    return (OnlineState.COMMITTED,) if verb == "commit" else ()


def edge(before: OnlineState, after: OnlineState) -> Edge:
    """Return the step from one state to another.

    :raises RefusedError: when there is none; names the possible steps.
    """
    for each in EDGES:
        if (each.before, each.after) == (before, after):
            return each
    found = [f"{each.verb} ({each.after})" for each in EDGES if each.before is before]
    possible = f"from there one can {', '.join(found)}" if found else "there is no way on from there, and none back"
    raise RefusedError(f"a cohort that is {before} cannot become {after}: {possible}")


def check_states(states: Iterable[tuple[int, OnlineState]], allowed: Iterable[OnlineState], *, verb: str) -> None:
    """Check that a step may begin in the states of cohorts.

    :raises RefusedError: when it may not; names the first such cohort, and the states in which the step is possible.
    """
    chosen = set(allowed)
    wanted = [each for each in OnlineState if each in chosen]
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
