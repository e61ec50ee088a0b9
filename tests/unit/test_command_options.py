"""A command's options and arguments: its signature declares them, its docstring is their help."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from queuekeeper.cli import app
from queuekeeper.cli.command import Plain, command, group, options
from queuekeeper.cli.output import Shown
from queuekeeper.cli.stores import StoreCommands
from queuekeeper.jobs.registry import kind_of
from tests.run_kinds import KINDS

pytestmark = pytest.mark.unit


def commands(of: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group, each with the words that call it."""
    below = getattr(of, "commands", None)
    if below is None:
        yield " ".join(path), of
    for name, each in (below or {}).items():
        yield from commands(each, *path, name)


class Order(StrEnum):
    OLDEST = "oldest"
    NEWEST = "newest"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How things are read.

    :param order: ``oldest``: the first come first. Without ``most``, all are
        read.
    :param most: how many things at most.
    :param wait: time to wait, such as 5s.
    :param again: read again.
    :param unasked: for the library only.
    :raises ValueError: for what is no order.
    """

    order: Order | str | None = None
    most: int = 7
    wait: str = "5s"
    again: bool = False
    unasked: int = 1


def test_every_option_and_argument_of_every_command_says_what_it_is_for() -> None:
    found = [(name, each) for name, one in commands(get_command(app)) for each in one.params]

    assert len(found) > 500
    assert [f"{name}: {each.name}" for name, each in found if not each.help] == []


def test_no_help_holds_marks_of_a_page_of_the_library() -> None:
    every = dict(commands(get_command(app)))

    assert len(every) > 100
    marked = re.compile(r":[a-z]+:`|``")
    helps = [(name, words) for name, one in every.items() for words in (one.help, *(each.help for each in one.params))]
    assert [(name, words) for name, words in helps if marked.search(words or "")] == []


@pytest.mark.parametrize("kind", KINDS)
def test_command_that_makes_a_run_of_a_kind_is_one_of_the_command_line(kind: str) -> None:
    words = kind_of(kind).command

    assert [name for name, _ in commands(get_command(app)) if f"{words} ".startswith(f"{name} ")] != []


def test_docstring_is_the_help_of_what_the_signature_declares() -> None:
    of = group("Things.")

    @command(of)
    def count(
        call: Plain,
        name: str,
        *,
        limit: int = 7,
        everything: bool = False,
        source: Annotated[str | None, typer.Option("--input", metavar="FILE")] = None,
    ) -> Shown:
        """Count things.

        Example: `count`

        :param name: Name of the thing.
        :param limit: Number of things: at most 9, and those
            that come first.
        :param everything: Count all.
        :param source: File to read.
        """
        return Shown({"name": name, "limit": limit, "everything": everything, "source": source}, "Count")

    of.command("other")(lambda: None)
    (_, made), _ = commands(get_command(of))

    assert made.help == "Count things.\n\nExample: `count`"
    assert {
        each.name: (each.opts, each.secondary_opts, each.help) for each in made.params if each.name != "as_json"
    } == {
        "name": (["name"], [], "Name of the thing."),
        "limit": (["--limit"], [], "Number of things: at most 9, and those that come first."),
        "everything": (["--everything"], [], "Count all."),
        "source": (["--input"], [], "File to read."),
    }
    done = CliRunner().invoke(of, ["count", "x", "--everything", "--input", "a", "--json"])
    assert json.loads(done.stdout) == {"name": "x", "limit": 7, "everything": True, "source": "a"}


def test_options_and_their_help_are_those_of_the_record_of_the_library_that_takes_them() -> None:
    of = group("Things.")
    taken = options(Reading, "order", "most", "wait", "again", wait="DURATION")

    @command(of, more=taken)
    def read(call: Plain, **given: Any) -> Shown:
        """Read things."""
        return Shown({name: getattr(Reading(**given), name) for name in taken}, "Read")

    of.command("other")(lambda: None)
    (_, made), _ = commands(get_command(of))

    assert {
        each.name: (each.opts, each.secondary_opts, each.metavar, each.default, each.help) for each in made.params
    } == {
        "order": (["--order"], [], None, None, "oldest: the first come first. Without --most, all are read."),
        "most": (["--most"], [], "INTEGER", 7, "How many things at most."),
        "wait": (["--wait"], [], "DURATION", "5s", "Time to wait, such as 5s."),
        "again": (["--again"], [], None, False, "Read again."),
        "as_json": (["--json"], [], None, False, "Write the result as JSON to stdout."),
    }
    done = CliRunner().invoke(of, ["read", "--order", "newest", "--wait", "1s", "--json"])
    assert json.loads(done.stdout) == {"order": "newest", "most": 7, "wait": "1s", "again": False}
    refused = CliRunner().invoke(of, ["read", "--order", "any"])
    assert (refused.exit_code, "'oldest', 'newest'" in refused.stderr) == (2, True)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What was taken.

    :param most_ms: for how long.
    """

    left: int
    dry_run: bool = False


class Shelf:
    """What commands of the next test work on."""

    def take(self, shelf: str, *, book: str | None = None, most_ms: int = 7_200_000, dry_run: bool = False) -> Taken:
        """Take books from a shelf.

        :param most_ms: time for which they are taken.
        :returns: what was taken.
        """
        return Taken(left=most_ms // 1_000, dry_run=dry_run)


class OnShelves(Plain):
    @cached_property
    def store(self) -> Shelf:
        return Shelf()


def test_command_takes_and_says_what_its_method_does_and_asks_with_what_the_dry_run_has_found() -> None:
    of = group("Things.")
    named = {name: typer.Argument(metavar=name.upper(), help=f"Name of the {name}.") for name in ("shelf", "book")}
    shelves = StoreCommands(group=of, path="things", on=OnShelves, arguments=named, whole="all of it")
    shelves.command(
        Shelf.take,
        "Taken",
        "novels",
        "novels emma",
        more=["most_ms"],
        asks="Take {book} of {shelf}: {found.left} left?",
    )

    def told(call: OnShelves, found: Taken, shelf: str, *, loud: bool = False) -> Shown:
        return Shown({"shelf": shelf, "loud": loud, "left": found.left}, "Told")

    shelves.command(Shelf.take, told, name="tell")
    (_, take), (_, tell) = commands(get_command(of))

    assert take.help == (
        "Take books from a shelf.\n\nIt says how much would change, and asks first.\n\n"
        "Examples: `things take novels`\n\n`things take novels emma`"
    )
    assert {each.name: (each.metavar, each.default, each.help) for each in take.params if each.name != "as_json"} == {
        "shelf": ("SHELF", None, "Name of the shelf."),
        "book": ("BOOK", None, "Name of the book. Without it, all of it."),
        "most_ms": ("DURATION", "2h", "Time for which they are taken. Write it like 10s, 30m, 1h or 7d."),
        "dry_run": (None, False, "Show what would be done and change nothing."),
        "yes": (None, False, "Go ahead without asking."),
    }
    refused = CliRunner().invoke(of, ["take", "novels", "--most", "1m"])
    assert str(refused.exception).startswith("Take all books of novels: 60 left? Nobody can be asked here")
    done = CliRunner().invoke(of, ["take", "novels", "emma", "--most", "1m", "--yes", "--json"])
    assert json.loads(done.stdout) == {"left": 60, "dry_run": False}
    assert json.loads(CliRunner().invoke(of, ["take", "novels", "--dry-run", "--json"]).stdout)["dry_run"] is True
    assert [each.name for each in tell.params] == ["shelf", "book", "loud", "as_json"]
    shown = CliRunner().invoke(of, ["tell", "novels", "--loud", "--json"])
    assert json.loads(shown.stdout) == {"shelf": "novels", "loud": True, "left": 7_200}


def test_choice_of_cohorts_that_a_script_has_left_empty_is_not_taken_for_all() -> None:
    steps = [
        name
        for name, one in commands(get_command(app))
        if {"cohorts", "plan_id"} <= {each.name for each in one.params} and name.split()[0] in ("migrate", "online")
    ]
    assert {"migrate copy", "migrate undo", "online cut-over", "online commit", "online roll-back"} <= {*steps}
    for step in steps:
        called = CliRunner().invoke(app, [*step.split(), "0123456789abcdef", "--cohorts", ""])
        assert called.exit_code == 2, step
        said = " ".join(called.output.split())
        assert "cohorts is '': it must be all, or numbers and rising ranges below 16,384, such as 0-3,7" in said


@pytest.mark.parametrize("line", ["migrate plan", "run start event_upkeep", "events read", "fanout publish"])
def test_no_option_shows_the_name_of_a_python_type_for_its_value(line: str) -> None:
    told = CliRunner().invoke(app, [*line.split(), "--help"]).stdout
    _, options = told.split("Options:")
    assert re.findall(r"<(?:str|int|float|path)>", options) == []
    assert re.search(r"^  --\S+ (?:TEXT|INTEGER|FOLDER)\b", options, re.MULTILINE)
