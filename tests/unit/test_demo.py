"""The demo reads its wishes from the environment, and refuses what it does not understand."""

from __future__ import annotations

import pytest

from queuekeeper.demo import DemoOptions
from queuekeeper.errors import UsageError

pytestmark = pytest.mark.unit


def test_without_wishes_it_approves_by_itself_and_stays() -> None:
    assert DemoOptions.read({"DEMO_APPROVE": ""}) == DemoOptions(approval="auto", leave=False, messages=200_000)


def test_wishes_are_read() -> None:
    wishes = {"DEMO_APPROVE": "ui", "DEMO_EXIT": "1", "DEMO_MESSAGES": "5000"}
    assert DemoOptions.read(wishes) == DemoOptions(approval="ui", leave=True, messages=5_000)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"DEMO_APPROVE": "no"}, "DEMO_APPROVE is 'no': it may be 'auto' or 'ui'"),
        ({"DEMO_MESSAGES": "many"}, "DEMO_MESSAGES is 'many': it must be a number from 5000 to 100000000"),
        ({"DEMO_MESSAGES": "999"}, "DEMO_MESSAGES is '999': it must be a number from 5000 to 100000000"),
    ],
)
def test_what_is_not_understood_is_refused(wishes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DemoOptions.read(wishes)
