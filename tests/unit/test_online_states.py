"""Every step between two states of a cohort is allowed with an undo to its name, or refused with what can be done."""

from __future__ import annotations

from itertools import product

import pytest

from queuekeeper.errors import RefusedError
from queuekeeper.migration.online.states import EDGES, MIRRORED, ON_POSTGRES, OnlineState, check_states, edge

ALLOWED = {
    ("planned", "copying"),
    ("copying", "caught_up"),
    ("caught_up", "verified"),
    ("verified", "cutting_over"),
    ("cutting_over", "on_redis"),
    ("on_redis", "soaking"),
    ("soaking", "committed"),
    ("copying", "planned"),
    ("caught_up", "planned"),
    ("verified", "planned"),
    ("caught_up", "copying"),
    ("verified", "copying"),
    ("cutting_over", "rolling_back"),
    ("on_redis", "rolling_back"),
    ("soaking", "rolling_back"),
    ("rolling_back", "copying"),
}


@pytest.mark.parametrize(("before", "after"), list(product(OnlineState, OnlineState)))
def test_each_pair_of_states_is_a_step_or_is_refused(before: OnlineState, after: OnlineState) -> None:
    if (before, after) in ALLOWED:
        found = edge(before, after)
        assert (found.before, found.after) == (before, after)
        return
    with pytest.raises(RefusedError, match=f"a cohort that is {before} cannot become {after}: ") as refused:
        edge(before, after)
    possible = [each for each in EDGES if each.before is before]
    for each in possible:
        assert f"{each.verb} ({each.after})" in str(refused.value)
    assert bool(possible) != ("no way on" in str(refused.value))


def test_every_step_has_a_verb_and_says_what_undoes_it() -> None:
    assert {(each.before, each.after) for each in EDGES} == ALLOWED
    assert len(EDGES) == len(ALLOWED)
    for each in EDGES:
        assert each.verb
        assert each.undo


def test_only_the_commit_cannot_be_undone() -> None:
    final = [each.after for each in EDGES if "there is none" in each.undo]

    assert final == [OnlineState.COMMITTED]
    assert not [each for each in EDGES if each.before is OnlineState.COMMITTED]


def test_from_every_state_but_the_last_there_is_a_way_back_to_the_first() -> None:
    back = {OnlineState.PLANNED}
    while more := {each.before for each in EDGES if each.after in back} - back:
        back |= more

    assert set(OnlineState) - back == {OnlineState.COMMITTED}


def test_each_state_belongs_to_one_store_or_is_mirrored() -> None:
    assert ON_POSTGRES.isdisjoint(MIRRORED)
    assert set(OnlineState) - ON_POSTGRES - MIRRORED == {OnlineState.COMMITTED}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (OnlineState.COPYING, "cohort 4 is copying: to cut over it has to be verified; catch up and verify come first"),
        (OnlineState.ON_REDIS, "cohort 4 is on_redis: to cut over it has to be verified$"),
        (OnlineState.COMMITTED, "what is committed has no way back but a new migration"),
    ],
)
def test_a_step_that_comes_too_early_or_too_late_says_what_it_needs(state: OnlineState, words: str) -> None:
    check_states([(3, OnlineState.VERIFIED)], [OnlineState.VERIFIED], verb="cut over")
    with pytest.raises(RefusedError, match=words):
        check_states([(3, OnlineState.VERIFIED), (4, state)], [OnlineState.VERIFIED], verb="cut over")
