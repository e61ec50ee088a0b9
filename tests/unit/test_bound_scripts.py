"""Scripts by name: calls in the package name what the headers name, and replies are read by the headers' names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from script_replies import Reply

import queuekeeper
from queuekeeper import lua
from queuekeeper.errors import ScriptError
from queuekeeper.keyspace import compacted_keys, fanout_consumer_keys, fanout_keys
from queuekeeper.lua import bind, scripts

pytestmark = pytest.mark.unit

PACKAGE = Path(queuekeeper.__file__).parent
TESTS_OF_SCRIPTS = Path(__file__).parent.parent / "lua"
AREAS = {name: area for name, area in vars(scripts).items() if isinstance(area, bind.Area)}
HEADER = """#!lua flags=no-writes
--[[
Purpose
    test
KEYS
    {keys}
ARGV
    {args}
Returns
    {returns}
Errors
    none
Cost
    O(1)
]]
return 1
"""


def script(folder: Path, *, keys: str = "none", args: str = "none", returns: str = "1  always") -> lua.Script:
    """Return a script with these sections."""
    (folder / "verb.lua").write_text(HEADER.format(keys=keys, args=args, returns=returns), "utf-8")
    return lua.load_from(folder, "verb")


def found(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return what a dotted name stands for in a module; none for what is no such name."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = found(node.value, names)
        if isinstance(owner, bind.Area | SimpleNamespace) or owner is scripts:
            return getattr(owner, node.attr)
        if isinstance(getattr(owner, "script", None), lua.Script):
            return getattr(owner, node.attr, None)
    return None


def calls_of_scripts() -> list[tuple[str, Any, ast.Call]]:
    """Return every call of a script in the package: its place, the script as a function, and what is passed."""
    calls: list[tuple[str, Any, ast.Call]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        if not re.search(r"\blua(\.| import )scripts\b", text):
            continue
        module = importlib.import_module(".".join(["queuekeeper", *path.relative_to(PACKAGE).with_suffix("").parts]))
        calls += (
            (f"{path.name}:{node.lineno}", bound, node)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call)
            and isinstance(getattr(bound := found(node.func, vars(module)), "script", None), lua.Script)
        )
    return calls


def test_every_call_names_what_the_header_names() -> None:
    calls = calls_of_scripts()
    wrong: list[str] = []
    for place, bound, node in calls:
        named = {keyword.arg or "**": None for keyword in node.keywords}
        try:
            inspect.signature(bound).bind(*node.args, **named)
        except TypeError as error:
            wrong.append(f"{place}: {bound.script.name}: {error}")
    assert calls
    assert any(bound is scripts.sessions.save_messages for _, bound, _ in calls)
    assert wrong == []


def test_every_script_has_a_name_and_can_be_bound() -> None:
    bound = {f"{name}/{verb}": getattr(area, verb) for name, area in AREAS.items() for verb in dir(area)}
    assert sorted(bound) == lua.names()
    assert {name: each.script.name for name, each in bound.items()} == {name: name for name in bound}


def test_keys_and_arguments_come_in_the_order_of_the_header() -> None:
    keys, own = fanout_keys("orders"), fanout_consumer_keys("orders", "billing", lanes=2)
    call = scripts.fanout.retry_dead(keys, own, ids=[7, 8], now_ms=5, consumer="billing")
    assert call.script is lua.load("fanout/retry_dead")
    assert call.keys == [
        keys.state, keys.options, keys.messages, keys.expiries, keys.cursors, own.delayed, own.dead, own.details,
        own.wakes, *own.ready,
    ]  # fmt: skip
    assert call.args == ["billing", 5, 7, 8]


def test_values_that_the_header_writes_as_one_are_passed_by_name(tmp_path: Path) -> None:
    args = """[1] head  "a:b:c", one text; c as doubles(d, e), or empty
    [2] pair  doubles(f, g), big-endian
    [3+] ids  "h:i" for each"""
    bound = bind.bind(script(tmp_path, args=args))
    ids = [bound.forms.ids(h=1, i=""), bound.forms.ids(i=3, h=2)]
    assert bound(a=1, b="x", c="", f=1, g=2, ids=ids).args == ["1:x:", struct.pack(">2d", 1, 2), "1:", "2:3"]
    assert bound.forms.c(d=3, e=0.5) == struct.pack(">2d", 3, 0.5)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'g'"):
        bound(a=1, b="x", c="", f=1, ids=())
    with pytest.raises(TypeError, match="unexpected keyword argument 'g'"):
        bound.forms.c(d=3, g=4)


def test_wrong_and_missing_names_are_refused() -> None:
    keys = compacted_keys("meter-7")
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'key'"):
        scripts.compacted.get(keys)
    with pytest.raises(TypeError, match="unexpected keyword argument 'keys'"):
        scripts.compacted.get(keys, keys=b"a")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'CompactedKeys'"):
        scripts.compacted.get(key=b"a")
    with pytest.raises(AttributeError, match="there is no Lua script 'compacted/gte'"):
        scripts.compacted.gte(keys, key=b"a")


def test_name_that_a_key_and_an_argument_share_is_refused(tmp_path: Path) -> None:
    both = script(tmp_path, keys="[1] id  one", args="[1] id  another")
    with pytest.raises(ScriptError, match="verb names id twice"):
        bind.bind(both)


@pytest.mark.parametrize(
    ("returns", "reply", "expected"),
    [
        ("{a, b}  both", [1, 2], {"a": 1, "b": 2}),
        ("{a, *rest}  more", [1, 2, 3], {"a": 1, "rest": (2, 3)}),
        ("{a, *rest}  more", [1], {"a": 1, "rest": ()}),
        ("{a, *rows(b, c)}  more", [1, 2, 3, 4, 5], {"a": 1, "rows": ((2, 3), (4, 5))}),
        ('{"kept", a}  first\n    {"gone"}  second', [b"kept", 1], {"word": "kept", "a": 1}),
        ('{"kept", a}  first\n    {"gone"}  second', [b"gone"], {"word": "gone"}),
        ('{a, b}  first\n    {"gone", c}  second', [1, 2], {"word": "", "a": 1, "b": 2}),
        ('{a, b}  first\n    {"gone", c}  second', [b"gone", 2], {"word": "gone", "c": 2}),
        ("{a, b}  first\n    {}  nothing", [1, 2], {"a": 1, "b": 2}),
    ],
)
def test_reply_is_read_by_the_names_of_the_header(
    tmp_path: Path, returns: str, reply: list[Any], expected: dict[str, Any]
) -> None:
    record = script(tmp_path, returns=returns).read(reply)
    assert record._asdict() == expected
    with pytest.raises(AttributeError):
        record.a = 9


def test_rows_of_a_reply_have_names_too(tmp_path: Path) -> None:
    record = script(tmp_path, returns="{*rows(key, value)}  all").read([b"a", 1, b"b", 2])
    assert [(row.key, row.value) for row in record.rows] == [(b"a", 1), (b"b", 2)]


def test_rows_of_a_list_within_a_reply_have_names_too(tmp_path: Path) -> None:
    read = script(tmp_path, returns="{a, fields(key, value), b}  all").read
    record = read([1, [b"a", 1, b"b", 2], 3])
    assert (record.a, record.b) == (1, 3)
    assert [(row.key, row.value) for row in record.fields] == [(b"a", 1), (b"b", 2)]
    assert read([1, [], 3]).fields == ()
    with pytest.raises(ValueError, match="shorter"):
        read([1, [b"a", 1, b"b"], 3])


@pytest.mark.parametrize(
    ("returns", "reply", "expected"),
    [("1  always", 1, 1), ('"text"  always', b"text", b"text"), ("{a}  some\n    {}  none", [], None)],
)
def test_what_is_no_list_stays_and_an_empty_one_is_none(
    tmp_path: Path, returns: str, reply: Any, expected: Any
) -> None:
    assert script(tmp_path, returns=returns).read(reply) == expected


@pytest.mark.parametrize(
    ("returns", "reply", "expected"),
    [
        ('"a:b"  both', b"1:2", {"a": b"1", "b": b"2"}),
        ('"a b"  both', b"1:2 3", {"a": b"1:2", "b": b"3"}),
        ('"a:*rest"  more', b"1:2:3", {"a": b"1", "rest": (b"2", b"3")}),
        ('"a:*rest"  more', b"1", {"a": b"1", "rest": ()}),
        ('"a:b"  first\n    {"gone"}  second', b"1:", {"word": "", "a": b"1", "b": b""}),
    ],
)
def test_text_of_several_parts_is_read_by_the_names_of_the_header(
    tmp_path: Path, returns: str, reply: bytes, expected: dict[str, Any]
) -> None:
    assert script(tmp_path, returns=returns).read(reply)._asdict() == expected


@pytest.mark.parametrize(("returns", "reply"), [('"a:b"  both', b"1:2:3"), ('"a:b:*rest"  more', b"1")])
def test_text_of_another_number_of_parts_is_an_error(tmp_path: Path, returns: str, reply: bytes) -> None:
    with pytest.raises(ValueError, match=r"verb answered \d values: its header names a, b"):
        script(tmp_path, returns=returns).read(reply)


def test_reply_of_another_length_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="verb answered 3 values: its header names a, b"):
        script(tmp_path, returns="{a, b}  both").read([1, 2, 3])


@pytest.mark.parametrize("returns", ["{a, ...}  old", '{a, "word"}  late', "{*rest, a}", "{a(b}  row", "{a"])
def test_list_that_is_written_otherwise_is_refused_with_its_line(tmp_path: Path, returns: str) -> None:
    with pytest.raises(ScriptError, match=r"^lua/verb\.lua:10: "):
        script(tmp_path, returns=returns)


def read_by_position(module: ast.AST) -> list[int]:
    """Return the lines that index or unpack what a caller of scripts has answered."""

    def is_answer(node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in answers
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ANSWERING

    lines: set[int] = set()
    for scope in (module, *(node for node in ast.walk(module) if isinstance(node, ast.FunctionDef))):
        answers: set[str] = set()
        assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
        if scope is not module:
            answers |= {
                target.id
                for node in assigned
                if is_answer(node.value)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
        lines |= {node.lineno for node in assigned if isinstance(node.targets[0], ast.Tuple) and is_answer(node.value)}
        lines |= {
            node.lineno
            for node in ast.walk(scope)
            if isinstance(node, ast.Subscript)
            and is_answer(node.value)
            and (isinstance(node.slice, ast.Slice) or isinstance(getattr(node.slice, "value", None), int))
        }
    return sorted(lines)


ANSWERING = {"call", "run", "_call"}
"""Methods that return what the server has answered; of ``execute`` an index names the call and not a part."""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("caller.call(script)[0]", [1]),
        ("queue.run(call)[1:]", [1]),
        ("a, b = caller.call(script)", [1]),
        ("def test():\n    reply = queue.run(call)\n    assert reply[4] == 1", [3]),
        ("def test():\n    reply = queue.run(call)\n    assert reply == [1]", []),
        ("caller.call(script)", []),
    ],
)
def test_reading_a_reply_by_position_is_found(text: str, lines: list[int]) -> None:
    assert read_by_position(ast.parse(text)) == lines


def test_tests_of_scripts_read_replies_by_the_names_of_the_header() -> None:
    """Their helpers answer a ``Reply``, which has names only; what a caller answers itself is compared as a whole."""
    assert Reply.__eq__ is dict.__eq__
    read = {path.name: read_by_position(ast.parse(path.read_text("utf-8"))) for path in TESTS_OF_SCRIPTS.glob("*.py")}
    assert read
    assert {name: lines for name, lines in read.items() if lines} == {}
