"""Pages of reference, made of docstrings, parameters of forms, commands, headers of scripts and comments of tables."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from queuekeeper import lua
from queuekeeper.cli import app
from queuekeeper.errors import QueuekeeperError
from queuekeeper.jobs.parameters import Described, Parameters, describe

ROOT = Path(__file__).parents[1]
STORES = {
    "sessions": "Session stores",
    "compacted": "Compacted queues",
    "fanout": "Fan-out queues",
    "events": "The event broker",
}
"""Packages whose public names are described, with their titles."""

_FIELD = re.compile(r"^:(\w+)(?: ([^:]+))?:\s*", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?\.?([^`<]+)`")
_LITERAL = re.compile(r"::\n\n((?:(?: {4,}.*)?\n)+)")
_HEADINGS = {"param": "Parameters", "cvar": "Attributes", "ivar": "Attributes", "raises": "Raises"}


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of reference.

    :param path: path below the folder of the reference.
    """

    path: str
    title: str
    text: str  # in Markdown


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown; a cell may have several lines."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|").strip() for cell in cells) + " |\n"

    heads = list(heads)
    return line(heads) + line("---" for _ in heads) + "".join(map(line, rows)) + "\n"


def prose(text: str) -> str:
    """Return a docstring's words in Markdown: names in code, and literal blocks in fences."""
    text = _ROLE.sub(r"`\1`", text).replace("``", "`")

    def fenced(match: re.Match[str]) -> str:
        return ":\n\n```python\n" + inspect.cleandoc("\n" + match[1]).strip("\n") + "\n```\n\n"

    return _LITERAL.sub(fenced, text + "\n\n").replace("\n::\n", "\n").rstrip() + "\n\n"


def described(text: str) -> str:
    """Return a docstring in Markdown: its words, then its fields as lists below headings."""
    parts = _FIELD.split(text)
    fields: dict[str, list[str]] = {}
    for kind, name, words in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        said = re.sub(r"\s+", " ", prose(words)).strip()
        heading = _HEADINGS.get(kind, "Returns")
        fields.setdefault(heading, []).append(f"- `{name}`: {said}\n" if name else f"- {said}\n")
    return prose(parts[0]) + "".join(f"**{heading}**\n\n{''.join(lines)}\n" for heading, lines in fields.items())


def signature(name: str, kind: Any) -> str:
    """Return how a class or function is called, with short names of types."""
    try:
        found = str(inspect.signature(kind))
    except (TypeError, ValueError):  # a type, an enumeration of the standard library
        return ""
    short = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z_a-z])", "", found).replace("'", "") if "'" in found else found
    whole = re.sub(r"\(self(?:, )?", "(", f"{name}{short}", count=1)
    if len(whole) > 100:
        whole = re.sub(r", (?![^\[]*\])", ",\n    ", whole.replace("(", "(\n    ", 1))
    return f"```python\n{whole}\n```\n\n"


def members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class that are ours."""
    for name, member in inspect.getmembers(kind):
        called = member.fget if isinstance(member, property) else member
        module = getattr(called, "__module__", None) or ""
        is_ours = module.startswith("queuekeeper.") and not isinstance(member, type)
        # What carries out a step is ours to call.
        if not name.startswith("_") and name != "answer" and is_ours and callable(called):
            yield name, member


def stores() -> Iterator[Page]:
    """Yield a page for the public names of each store."""
    for store, title in STORES.items():
        package = importlib.import_module(f"queuekeeper.{store}")
        text = described(inspect.getdoc(package) or "") + f"```python\nimport queuekeeper.{store}\n```\n\n"
        for name in sorted(package.__all__, key=str.lower):
            public = getattr(package, name)
            text += f"## {name} {{ #{name} }}\n\n"
            if not isinstance(public, type):
                is_called = inspect.isroutine(public)
                text += (signature(name, public) + described(inspect.getdoc(public) or "")) if is_called else "\n"
                continue
            text += signature(name, public) + described(inspect.getdoc(public) or "")
            for member_name, member in members(public):
                text += f"### {member_name} {{ #{name}.{member_name} }}\n\n"
                text += "" if isinstance(member, property) else signature(member_name, member)
                text += described(inspect.getdoc(member) or "")
        yield Page(path=f"python/{store}.md", title=title, text=text)


def errors() -> Iterator[Page]:
    """Yield the page of exceptions."""

    def below(kind: type[QueuekeeperError]) -> Iterator[type[QueuekeeperError]]:
        yield kind
        for each in kind.__subclasses__():
            yield from below(each)

    rows = (
        (
            f"`{each.__name__}`",
            f"`{each.__bases__[0].__name__}`",
            str(each.exit_code),
            (each.__doc__ or "").split("\n")[0],
        )
        for each in below(QueuekeeperError)
        if each.__module__ == "queuekeeper.errors"
    )
    text = "All are in `queuekeeper.errors`. A command that fails with one ends with its exit code.\n\n"
    yield Page(
        path="python/errors.md",
        title="Exceptions",
        text=text + table(("name", "kind of", "exit code", "meaning"), rows),
    )


def value(each: Described) -> str:
    """Return the default of a parameter, as a form begins."""
    default = each.said.proposed if each.default in (None, "") and each.said.proposed is not None else each.default
    if default in (None, "", ()):
        return each.said.unset
    return f"`{getattr(default, 'value', default)}`".replace("`True`", "yes").replace("`False`", "no")


def forms() -> Iterator[Page]:
    """Yield the page of each DAG's form: the DAG file names the models that it is made of."""
    for path in sorted((ROOT / "dags").glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        places = {
            name.asname or name.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for name in node.names
        }
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "form"
        ]
        for call in calls:
            models = [getattr(importlib.import_module(places[each.id]), each.id) for each in call.args]  # type: ignore[attr-defined]
            yield Page(path=f"forms/{path.stem}.md", title=path.stem, text=form(path.stem, models))


def form(dag: str, models: Iterable[type[Parameters]]) -> str:
    """Return the parameters of a form by its sections."""
    sections: dict[str, list[tuple[str, ...]]] = {}
    for each in (each for model in models for each in describe(model).values()):
        rule = re.sub(r"^it must be ", "", each.rule)
        words = each.said.help if not each.choices else f"{each.said.help} One of: {labels(each)}."
        sections.setdefault(each.said.section, []).append(
            (f"`{each.name}`", f"{each.said.title}: {words}", value(each), rule)
        )
    text = f"The form of the DAG `{dag}`; its tasks are in the [runbook](../../runbooks/{dag}.md).\n\n"
    for section, rows in sections.items():
        text += (f"## {section}\n\n" if section else "") + table(("name", "meaning", "default", "value"), rows)
    return text


def labels(each: Described) -> str:
    """Return the choices of a parameter with their meanings."""
    return ", ".join(
        f"`{name}`" if label == name else f"`{name}` ({label.removeprefix(f'{name}: ')})"
        for name, label in (each.choices or {}).items()
    )


def commands() -> Iterator[Page]:
    """Yield a page for each group of commands, and one for those without a group."""
    root: Any = get_command(app)
    context = root.context_class(root, info_name="queuekeeper")
    alone = ""
    for name in root.list_commands(context):
        found = root.get_command(context, name)
        if not isinstance(found, TyperGroup):
            alone += command(found, name, context)
            continue
        inner = found.context_class(found, info_name=name, parent=context)
        text = f"{sentence(found.help or '')}\n\n"
        for each in found.list_commands(inner):
            text += command(found.get_command(inner, each), each, inner)
        yield Page(path=f"commands/{name}.md", title=f"queuekeeper {name}", text=text)
    yield Page(path="commands/index.md", title="queuekeeper", text=alone)


def sentence(text: str) -> str:
    """Return help without the character that keeps its lines apart."""
    return re.sub(r"\n*\b*", "", inspect.cleandoc(text).replace("\b", "")).strip() if "\b" in text else text.strip()


def command(found: TyperCommand | Any, name: str, parent: Any) -> str:
    """Return usage, help and parameters of a command."""
    context = found.context_class(found, info_name=name, parent=parent)
    usage = " ".join([context.command_path, *found.collect_usage_pieces(context)])
    text = f"## {name}\n\n```\n{usage}\n```\n\n{sentence(found.help or '')}\n\n"
    records = [each.get_help_record(context) for each in found.get_params(context)]
    rows = [(f"`{record[0]}`", record[1]) for record in records if record and "--help" not in record[0]]
    return text + (table(("parameter", "meaning"), rows) if rows else "")


def scripts() -> Iterator[Page]:
    """Yield a page for each area of scripts, made of their headers."""
    areas: dict[str, str] = {}
    for name in lua.names():
        area, _, verb = name.partition("/")
        source = (ROOT / "lua" / f"{name}.lua").read_text("utf-8")
        first, _, rest = source.partition("\n--[[\n")
        header = rest.partition("\n]]")[0]
        purpose, _, others = header.removeprefix("Purpose\n").partition("\nKEYS\n")
        words = re.sub(r"\s+", " ", purpose).strip()
        flags = first.removeprefix("#!lua").strip()
        areas[area] = areas.get(area, "") + (
            f"## {verb}\n\n{words}\n\n" + (f"`{flags}`\n\n" if flags else "") + f"```text\nKEYS\n{others}\n```\n\n"
        )
    for area, text in areas.items():
        yield Page(path=f"scripts/{area}.md", title=f"Scripts of {area}", text=text)


_COLUMN = re.compile(r"^    (?!CONSTRAINT|PRIMARY|UNIQUE|CHECK|FOREIGN|LIKE)([a-z_]+) ([^,(\n]+(?:\([0-9, ]+\))?)")


def tables() -> Iterator[Page]:
    """Yield a page for the tables of each schema, made of the comments in their files."""
    for schema, folder in (("queuekeeper", "queuekeeper"), ("pgmb", "events")):
        text = f"Tables of schema `{schema}`.\n\n"
        for path in sorted((ROOT / "sql" / folder / "tables").glob("*.sql")):
            before, created, body = path.read_text("utf-8").partition("CREATE ")
            comments = (line.removeprefix("--").strip() for line in before.splitlines())
            words = " ".join(line for line in comments if not line.startswith("needs:"))
            body = (created + body).partition("\n);" if "\n);" in body else "\n)")[0]
            rows = []
            for line in body.splitlines():
                if match := _COLUMN.match(line):
                    kind = re.split(
                        r" (?:NOT NULL|DEFAULT|REFERENCES|GENERATED|PRIMARY|CONSTRAINT|CHECK|UNIQUE|NULL|--)", match[2]
                    )[0]
                    rows.append((f"`{match[1]}`", f"`{kind.strip()}`", line.partition("-- ")[2]))
            text += f"## {path.stem}\n\n{words}\n\n" + table(("column", "type", "meaning"), rows)
        yield Page(path=f"tables/{schema}.md", title=f"Schema {schema}", text=text)


MAKERS: tuple[Callable[[], Iterator[Page]], ...] = (stores, errors, forms, commands, scripts, tables)


def write(folder: Path) -> None:
    """Write all pages of reference into a folder."""
    for make in MAKERS:
        for page in make():
            path = folder / page.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# {page.title}\n\n{page.text}", encoding="utf-8")
