"""A rate is that of the last ten seconds, and a line of progress says it."""

from __future__ import annotations

import re
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from queuekeeper.cli import progress as bar
from queuekeeper.cli.input import lines_of
from queuekeeper.jobs import progress
from queuekeeper.jobs.progress import Narrator, Rate, line

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
    assert line("verify", done=0, total=0, rate=0.0) == "verify 0/0 messages (100 %)"
    assert line("copy", done=0, total=10_000, rate=0.0) == "copy 0/10,000 messages (0 %)"
    assert line("copy", done=10_000, total=10_000, rate=0.0) == "copy 10,000/10,000 messages (100 %)"
    assert line("copy", done=2_500, total=10_000, rate=None) == "copy 2,500/10,000 messages (25 %)"
    assert line("Repair", done=40, total=None, rate=2.5, unit="keys looked at") == "Repair 40 keys looked at, 2/s"


def test_narrator_says_now_and_then_how_far_a_step_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    narrator = Narrator(said.append, "a share:", total=40, unit="keys")
    narrator.at(10, "; 1 change made")
    assert said == [], "ten seconds have not passed"

    monkeypatch.setattr(progress, "LINE_S", 0.0)
    narrator.at(20, "; 2 changes made")
    narrator.at(40, "; 3 changes made")

    assert [re.sub(r"[\d,]+/s", "N/s", line) for line in said] == [
        "a share: 20/40 keys (50 %), N/s, 0 s left; 2 changes made",
        "a share: 40/40 keys (100 %), N/s; 3 changes made",
    ]


def test_without_a_terminal_a_step_tells_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with bar.shown("copy", total=1, unit="messages", counting=lambda: nullcontext(lambda: 1)):
        print("copy 1/1 messages")

    assert capsys.readouterr() == ("copy 1/1 messages\n", "")


def test_on_a_terminal_a_bar_shows_at_once_what_narrators_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, said = StringIO(), list[str]()
    console = Console(file=shown, force_terminal=True, width=80)
    monkeypatch.setattr(bar, "screen", lambda **_: console)
    monkeypatch.setattr(progress, "SHOWN_S", 0.0)
    with bar.followed():
        assert shown.getvalue() == "", "a question may still come"
        Narrator(said.append, "looked at", total=None, unit="keys").at(1_000)
        Narrator(said.append, "cut over", total=40, unit="clients").at(20)
    assert said == []
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown.getvalue())
    assert "━━━━━━━━━━━━ looked at 1,000 keys, " in plain, "nobody knows of how many"
    assert "━━━━━━╺━━━━━ cut over 20/40 clients (50 %), " in plain

    # Behind the block, lines are said again.
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    Narrator(said.append, "cut over", total=40, unit="clients").at(40)
    assert len(said) == 1


def test_lines_that_are_imported_are_counted_where_nobody_looks_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    (tmp_path / "events.jsonl").write_bytes(b"1\n2\n3\n")
    with lines_of(str(tmp_path / "events.jsonl")) as lines:
        assert list(lines) == [b"1\n", b"2\n", b"3\n"]
    assert "read 2 lines, " in capsys.readouterr().err
