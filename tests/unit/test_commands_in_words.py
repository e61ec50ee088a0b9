"""A command that a sentence of the package names can be pasted: it is whole, and the command line takes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from queuekeeper.cli import app
from tests.command_parser import COMMAND, check
from tests.unit.test_command_options import commands

pytestmark = pytest.mark.unit

SOURCE = Path(__file__).parents[2] / "src" / "queuekeeper"
_NAMED = re.compile(r"`(queuekeeper [^`]+)`|(?:Next|by|it|them): (queuekeeper [^\"'`\n]+)")
_OF_A_VALUE = re.compile(r"queuekeeper (?:run start |\w+ )?17\b")
"""A command whose name is a value, as of a job or a step."""


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module but its docstrings, with their lines; a value is a number in them."""
    tree = ast.parse(path.read_text("utf-8"))
    left_out = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(each) for each in ast.walk(node) if each is not node}
            parts = (str(each.value) if isinstance(each, ast.Constant) else "17" for each in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.lineno, node.value


def test_commands_that_errors_and_results_name_can_be_pasted() -> None:
    wrong, count = [], 0
    for path in sorted(SOURCE.rglob("*.py")):
        for line, sentence in sentences(path):
            for named in _NAMED.finditer(sentence):
                count += 1
                command = re.sub(r"\{\w+\}|\b[A-Z]{2,}\b", "17", named[1] or named[2])
                if _OF_A_VALUE.match(command):
                    continue
                try:
                    check(command)
                except typer.Exit:
                    continue  # --help
                except Exception as error:
                    wrong.append(f"{path.relative_to(SOURCE)}:{line}: {command}: {error}")
    assert not wrong, "\n".join(wrong)
    assert count > 70


def test_examples_in_the_help_of_every_command_can_be_pasted() -> None:
    found = [(name, each.help or "") for name, each in commands(COMMAND)]
    examples = [(name, line) for name, words in found for line in re.findall(r"`([^`]*\bqueuekeeper [^`]+)`", words)]

    for name, line in examples:
        command = line[line.index("queuekeeper ") :]
        try:
            check(command)
        except Exception as error:
            raise AssertionError(f"{name}: {command}") from error
    assert {name for name, words in found if "Example" in words} == {name for name, _ in found}


def test_lists_of_commands_say_whole_sentences_on_80_columns() -> None:
    groups = {name.rpartition(" ")[0] for name, _ in commands(COMMAND)} | {""}

    for group in groups:
        # Of 80 columns two are a margin.
        shown = CliRunner().invoke(app, [*group.split(), "--help"], terminal_width=78)
        cut = [line for line in shown.output.splitlines()[1:] if line.endswith("...")]
        assert not cut, cut
    assert len(groups) > 15
