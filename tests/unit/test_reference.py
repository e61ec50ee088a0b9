"""Docstrings, of which `make docs` builds the reference, say what each public name of a store is."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import queuekeeper
from queuekeeper import sessions
from queuekeeper.sessions.store import SessionOperations

pytestmark = pytest.mark.unit

STORES = ("sessions", "compacted", "fanout", "events")

ONLY_POINTS = re.compile(r"see\b|(as|like|the contract of) (:\w+:|`)|what `\S+ says\b", re.IGNORECASE)
"""The beginning of a text that sends its reader elsewhere instead of telling what something does."""


def public_members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, member in inspect.getmembers(kind, callable):
        if not name.startswith("_") and (getattr(member, "__module__", None) or "").startswith("queuekeeper."):
            yield name, member


@pytest.mark.parametrize("store", STORES)
def test_every_public_name_is_described_and_no_signature_shows_how_it_is_made(store: str) -> None:
    package = importlib.import_module(f"queuekeeper.{store}")
    for name in package.__all__:
        public = getattr(package, name)
        if not isinstance(public, type):
            continue
        assert public.__doc__, name
        for member_name, member in public_members(public):
            assert inspect.getdoc(member), f"{name}.{member_name}"
            assert "Operation[" not in str(inspect.signature(member)), f"{name}.{member_name}"


MADE_BY_FUNCTIONS = {"EventStream", "AsyncEventStream"}
"""Public classes that nobody makes with their constructors."""


def own_types(hint: Any, store: str) -> Iterator[type[Any]]:
    """Return the classes of a store that a type is made of."""
    if isinstance(hint, list | tuple):
        for each in hint:
            yield from own_types(each, store)
    elif get_origin(hint) is not None:
        yield from own_types(get_args(hint), store)
    elif isinstance(hint, type) and hint.__module__.startswith(f"queuekeeper.{store}."):
        yield hint


def public_signatures(package: Any) -> Iterator[tuple[str, Any]]:
    """Return what brokers call and read: functions, constructors, methods and properties."""
    for name in package.__all__:
        public = getattr(package, name)
        if not isinstance(public, type):
            yield name, public
            continue
        if name not in MADE_BY_FUNCTIONS:
            yield name, vars(public).get("__init__")
        for member_name, member in inspect.getmembers(public):
            # What carries out a step is ours to call.
            if not member_name.startswith("_") and member_name != "answer":
                yield f"{name}.{member_name}", member.fget if isinstance(member, property) else member


@pytest.mark.parametrize("store", STORES)
def test_every_type_of_a_public_signature_is_imported_from_the_package(store: str) -> None:
    package = importlib.import_module(f"queuekeeper.{store}")
    seen = 0
    for name, public in public_signatures(package):
        if not callable(public) or not getattr(public, "__annotations__", None):
            continue
        for hint in get_type_hints(public).values():
            for own in own_types(hint, store):
                seen += 1
                assert getattr(package, own.__name__, None) is own, f"{name} names {own.__name__}"
    assert seen > 20


def docstrings(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "module"), text


def test_no_docstring_only_points_elsewhere() -> None:
    package = Path(queuekeeper.__file__).parent
    pointing = [
        f"{path.relative_to(package)}: {name}: {text}"
        for path in sorted(package.rglob("*.py"))
        for name, text in docstrings(ast.parse(path.read_text("utf-8")))
        if ONLY_POINTS.match(text)
    ]
    assert not pointing, "\n".join(pointing)


@pytest.mark.parametrize(
    "store",
    [
        sessions.RedisSessionStore,
        sessions.AsyncRedisSessionStore,
        sessions.PostgresSessionStore,
        sessions.AsyncPostgresSessionStore,
        sessions.SessionRouter,
        sessions.AsyncSessionRouter,
    ],
)
def test_help_of_every_store_of_sessions_has_the_words_of_their_contract(store: type[Any]) -> None:
    for name, contract in public_members(SessionOperations):
        shown = pydoc.plain(pydoc.render_doc(getattr(store, name)))
        words = re.sub(r"\s+", " ", inspect.getdoc(contract) or "")
        body = re.split(r" :\w+[\w ]*:", words)[0]
        assert body
        assert body in re.sub(r"\s+", " ", shown), f"{store.__name__}.{name}"
        for field in inspect.getdoc(contract).splitlines():  # type: ignore[union-attr]
            assert field.strip() in shown, f"{store.__name__}.{name}"


def test_what_an_implementation_adds_stands_between_the_words_and_the_fields_of_the_contract() -> None:
    text = inspect.getdoc(sessions.SessionRouter.save_messages) or ""
    contract = text.index("Store messages for many sessions")
    own = text.index("After a failed save, later saves of the same session are not stored either")
    fields = text.index(":returns: a report for each save")
    own_fields = text.index(":raises UsageError: also for values that one of the stores cannot hold")
    assert contract < own < fields < own_fields
