"""A command's options and arguments: its signature declares them, its docstring is their help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from queuekeeper.cli import app
from queuekeeper.cli.command import Plain, command, group
from queuekeeper.cli.output import Shown

pytestmark = pytest.mark.unit


def commands(of: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group, each with the words that call it."""
    below = getattr(of, "commands", None)
    if below is None:
        yield " ".join(path), of
    for name, each in (below or {}).items():
        yield from commands(each, *path, name)


def test_every_option_and_argument_of_every_command_says_what_it_is_for() -> None:
    found = [(name, each) for name, one in commands(get_command(app)) for each in one.params]

    assert len(found) > 500
    assert [f"{name}: {each.name}" for name, each in found if not each.help] == []


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
