"""Pauses that double: one rule, and each of its users waits as long as it always has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import queuekeeper
from queuekeeper.clock import HANDLER_BACKOFF, SERVER_BACKOFF, Backoff
from queuekeeper.errors import ServerUnavailable
from queuekeeper.events.consumption import Recovery
from queuekeeper.events.model import TransientRefusal
from queuekeeper.sessions.router.finding import Patience

pytestmark = pytest.mark.unit

TWICE = r"(?:\b2(?:\.0)? ?\*|\*=? ?2(?:\.0)?\b)"
BY_HAND = re.compile(rf"(?:pause|delay|wait)\w*\b[^\n]*{TWICE}|{TWICE}[^\n]*(?:pause|delay|wait)", re.IGNORECASE)
RECONNECTS_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0)


@pytest.mark.parametrize(
    ("backoff", "pauses_s"),
    [
        (SERVER_BACKOFF, (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0)),
        (HANDLER_BACKOFF, (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0)),
    ],
)
def test_pause_doubles_up_to_its_bound(backoff: Backoff, pauses_s: Sequence[float]) -> None:
    assert tuple(backoff.after(attempt) for attempt in range(len(pauses_s))) == pauses_s
    assert backoff.after(10**9) == backoff.longest_s


def test_pause_grows_by_the_factor_that_is_asked_for_and_without_one_stays() -> None:
    three, one = (Backoff(first_s=0.1, longest_s=5.0, factor=factor) for factor in (3.0, 1.0))
    assert [three.after(attempt) for attempt in range(5)] == pytest.approx([0.1, 0.3, 0.9, 2.7, 5.0])
    assert {one.after(attempt) for attempt in (0, 1, 10**9)} == {0.1}
    assert Backoff(first_s=0.0, longest_s=5.0).after(10**9) == 0.0


def test_no_pause_is_doubled_by_hand() -> None:
    package = Path(queuekeeper.__file__).parent
    found = [
        f"{path.relative_to(package)}: {match[0]}"
        for path in sorted(package.rglob("*.py"))
        for match in BY_HAND.finditer(path.read_text("utf-8"))
    ]

    assert found == []


def test_service_waits_longer_for_each_loss_and_for_each_refusal_until_it_serves_well() -> None:
    now_s = 0.0
    recovery = Recovery("group", now_s=lambda: now_s)
    lost, refused = ServerUnavailable(), TransientRefusal()
    recovery.note_service()

    assert tuple(recovery.pause_after(lost) for _ in RECONNECTS_S) == RECONNECTS_S
    assert tuple(recovery.pause_after(refused) for _ in RECONNECTS_S) == RECONNECTS_S
    recovery.note_service()
    assert (recovery.pause_after(lost), recovery.pause_after(refused)) == (0.1, 10.0)
    now_s = 9.9
    assert recovery.pause_after(refused) == 10.0
    now_s = 10.0
    assert recovery.pause_after(refused) == 0.1


def test_router_waits_not_at_all_then_briefly_and_longer_only_while_nothing_changes() -> None:
    patience = Patience(ends_s=1.0)
    pauses_s = [patience.pause_s]
    for in_vain in (True, True, True, False, True, True, True, True, True, True):
        patience.note(in_vain=in_vain)
        pauses_s.append(patience.pause_s)

    assert pauses_s == [0.0, 0.005, 0.01, 0.02, 0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1]
