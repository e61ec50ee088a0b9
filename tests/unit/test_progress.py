"""A rate is that of the last ten seconds, and a line of progress says it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Event

import pytest

from queuekeeper.cli import progress
from queuekeeper.jobs.progress import Rate, line

pytestmark = pytest.mark.unit


def test_rate_is_that_of_the_last_ten_seconds() -> None:
    rate = Rate()

    assert rate.at(0.0, 0) == 0.0
    assert [rate.at(float(second), 1_000 * second) for second in range(1, 21)] == [1_000.0] * 20
    # Nothing moves any more.
    assert [round(rate.at(20.0 + second, 20_000)) for second in range(1, 12)][8:] == [100, 0, 0]
    # What was fast before says nothing of now.
    assert rate.at(32.0, 20_500) == 50.0


def test_line_says_how_far_it_is_how_fast_it_goes_and_when_it_will_be_done() -> None:
    assert line("copy", done=2_500, total=10_000, rate=500.0) == "copy 2,500/10,000 messages (25 %), 500/s, 15 s left"
    assert line("copy", done=10_000, total=10_000, rate=500.0) == "copy 10,000/10,000 messages (100 %), 500/s"
    assert line("copy", done=2_500, total=10_000, rate=0.0) == "copy 2,500/10,000 messages (25 %), 0/s"
    assert line("verify", done=0, total=0, rate=0.0) == "verify 0/0 messages (100 %), 0/s"
    assert line("Repair", done=40, total=None, rate=2.5, unit="keys looked at") == "Repair 40 keys looked at, 2/s"


def test_without_a_terminal_a_line_is_written_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.01)
    asked = Event()
    counts = iter([10, 20])

    @contextmanager
    def counting() -> Iterator[Callable[[], int]]:
        yield count

    def count() -> int:
        found = next(counts, 30)
        if found == 30:
            asked.set()
        return found

    with progress.shown("Cleanup", total=None, unit="keys looked at", counting=counting):
        print("what the step says")
        assert asked.wait(timeout=60)

    out, err = capsys.readouterr()
    assert out == "what the step says\n"
    assert re.match(r"Cleanup 10 keys looked at, 0/s\nCleanup 20 keys looked at, [\d,]+/s\n", err)


def test_step_that_tells_of_itself_is_left_to_it_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown("copy", total=1, unit="messages", counting=lambda: nullcontext(lambda: 1), tells_itself=True):
        print("copy 1/1 messages")

    assert capsys.readouterr() == ("copy 1/1 messages\n", "")
