"""The loader: includes, headers, and messages that name the file that a person edits."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from queuekeeper import lua
from queuekeeper.errors import ScriptError
from queuekeeper.keyspace import CompactedKeys, FanoutConsumerKeys, FanoutKeys
from queuekeeper.lua import Line, ScriptCaller
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua

HEADER = """#!lua flags=no-writes
--[[
Purpose
    Show what a header
    may hold.
KEYS
    [1]  first   one key
    [2+] others  more keys,
                 as many as are wanted
ARGV
    none
Returns
    {"done"}  always
Errors
    INVALID   never
    MOVED_ON  never either
Cost
    O(1)
]]
"""

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a Lua file below the test's directory."""

    def write_file(name: str, text: str) -> None:
        path = tmp_path / f"{name}.lua"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    return write_file


def test_header_is_read(tmp_path: Path, write: Write) -> None:
    write("area/verb", f"{HEADER}return {{ 'done' }}\n")
    script = lua.load_from(tmp_path, "area/verb")
    assert script.name == "area/verb"
    assert script.flags == {"no-writes"}
    assert script.purpose == "Show what a header may hold."
    assert [(key.index, key.repeats, key.name, key.text) for key in script.keys] == [
        (1, False, "first", "one key"),
        (2, True, "others", "more keys, as many as are wanted"),
    ]
    assert script.args == ()
    assert script.returns == ('{"done"}  always',)
    assert script.errors == {"INVALID": "never", "MOVED_ON": "never either"}
    assert script.cost == "O(1)"


def test_keys_of_a_kind_are_named_in_one_line(tmp_path: Path, write: Write) -> None:
    write("verb", HEADER.replace("[1]  first   one key", "[1-3]  first, second, third").replace("[2+]", "[4+]"))
    keys = lua.load_from(tmp_path, "verb").keys
    assert [(key.index, key.name) for key in keys] == [(1, "first"), (2, "second"), (3, "third"), (4, "others")]


def test_keys_get_the_names_of_the_header(tmp_path: Path, write: Write, client: RedisClient) -> None:
    header = HEADER.replace("[1]  first   one key", "[1-2]  first, second").replace("[2+]", "[3+]")
    write("verb", f"{header}--- @keys\nreturn {{ keys.first, keys.second, keys.others[2] }}\n")
    script = lua.load_from(tmp_path, "verb")
    assert len(script.lines) == len(script.source.splitlines())
    assert ScriptCaller(client).call(script, ["{k}a", "{k}b", "{k}c", "{k}d"], []) == [b"{k}a", b"{k}b", b"{k}d"]


def test_keys_that_are_only_named_are_described_in_the_keyspace() -> None:
    described = {
        area: set(re.findall(r":param (\w+):", "".join(kind.__doc__ or "" for kind in kinds)))
        for area, kinds in {"fanout": (FanoutKeys, FanoutConsumerKeys), "compacted": (CompactedKeys,)}.items()
    }
    named = {(name.partition("/")[0], key.name) for name in lua.names() for key in lua.load(name).keys if not key.text}
    assert named
    assert {(area, key) for area, key in named if key not in described[area]} == set()


def test_include_is_put_where_it_is_named_and_only_once(tmp_path: Path, write: Write) -> None:
    write("includes/base", "local base = 1\n")
    write("includes/left", '--- @include "includes/base"\nlocal left = base\n')
    write("includes/right", '--- @include "includes/base"\nlocal right = base\n')
    write("verb", f'{HEADER}--- @include "includes/left"\n--- @include "includes/right"\nreturn {{ left, right }}\n')
    script = lua.load_from(tmp_path, "verb")
    code = script.source.split("]]\n")[1]
    assert code == "local base = 1\nlocal left = base\nlocal right = base\nreturn { left, right }\n"
    assert script.lines[19:] == (
        Line("lua/includes/base.lua", 1),
        Line("lua/includes/left.lua", 2),
        Line("lua/includes/right.lua", 2),
        Line("lua/verb.lua", 22),
    )


def test_same_text_has_the_same_digest(tmp_path: Path, write: Write) -> None:
    write("verb", f"{HEADER}return 1\n")
    first = lua.load_from(tmp_path, "verb")
    assert lua.load_from(tmp_path, "verb") == first
    write("verb", f"{HEADER}return 2\n")
    assert lua.load_from(tmp_path, "verb").sha1 != first.sha1


INCLUDE_ERRORS = {
    "missing": (
        {"verb": '--- @include "includes/nothing"'},
        'lua/verb.lua:20: include "includes/nothing" is missing: there is no includes/nothing.lua',
    ),
    "missing in an include": (
        {"verb": '--- @include "includes/a"', "includes/a": '\n--- @include "includes/nothing"'},
        """lua/includes/a.lua:2: include "includes/nothing" is missing: there is no includes/nothing.lua
  included from lua/verb.lua:20""",
    ),
    "outside": (
        {"verb": '--- @include "../../etc/passwd"'},
        'lua/verb.lua:20: include "../../etc/passwd" is missing: there is no ../../etc/passwd.lua',
    ),
    "duplicate": (
        {"verb": '--- @include "includes/a"\n--- @include "includes/a"', "includes/a": "local a = 1"},
        'lua/verb.lua:21: duplicate include "includes/a": line 20 has it already',
    ),
    "itself": (
        {"verb": '--- @include "verb"'},
        'lua/verb.lua:20: include "verb" closes a cycle: verb -> verb',
    ),
    "cycle": (
        {
            "verb": '--- @include "includes/a"',
            "includes/a": '--- @include "includes/b"',
            "includes/b": '\n\n--- @include "includes/a"',
        },
        """lua/includes/b.lua:3: include "includes/a" closes a cycle: includes/a -> includes/b -> includes/a
  included from lua/includes/a.lua:1
  included from lua/verb.lua:20""",
    ),
    "misspelt": (
        {"verb": "-- @include includes/a"},
        'lua/verb.lua:20: an include is written --- @include "includes/name", alone on its line',
    ),
    "script as include": (
        {"verb": '--- @include "other"', "other": "#!lua"},
        "lua/other.lua:1: an include has no #! line: only a script has\n  included from lua/verb.lua:20",
    ),
}


@pytest.mark.parametrize(("files", "message"), INCLUDE_ERRORS.values(), ids=INCLUDE_ERRORS)
def test_broken_include_is_named_with_file_line_and_stack(
    tmp_path: Path, write: Write, files: dict[str, str], message: str
) -> None:
    for file, text in files.items():
        write(file, f"{HEADER}{text}\n" if file == "verb" else f"{text}\n")
    with pytest.raises(ScriptError) as caught:
        lua.load_from(tmp_path, "verb")
    assert str(caught.value) == message


# What is replaced in the header, by what, and what is then said of lua/verb.lua.
HEADER_ERRORS = {
    "no shebang": ("#!lua flags=no-writes", "-- lua", "1: the first line of a script is"),
    "unknown flag": (
        "no-writes",
        "no-write",
        "1: unknown flag no-write: one of allow-cross-slot-keys, allow-oom, allow-stale, no-cluster,",
    ),
    "no header": (HEADER, "#!lua\nreturn 1\n", "1: the header, a comment from --[[ to ]], has to follow"),
    "not closed": ("]]\n", "", "2: the header is not closed with ]]"),
    "section missing": ("Cost\n    O(1)\n", "", "17: the header has no Cost"),
    "section empty": ("    O(1)\n", "", "18: the header has no Cost"),
    "section out of order": ("Returns", "Errors", "12: the header goes on with 'Returns', not with 'Errors'"),
    "section too many": ("    O(1)\n", "    O(1)\nMore\n", "19: the header goes on with ']]', not with 'More'"),
    "text before a section": ("Purpose\n", "", "3: the header begins with 'Purpose'"),
    "key not numbered": (
        "[1]  first",
        "first",
        "7: a key or argument is written '[1] name  text' or '[4+] name  text'",
    ),
    "key out of order": (
        "[1]  first",
        "[3]  first",
        "7: [3] is out of order: positions go 1, 2, 3 and only the last may repeat",
    ),
    "names not numbered": (
        "[1]  first   one key",
        "[1-3]  first, second",
        "7: 1-3 does not number 2 names from 1 on",
    ),
    "key after repeated ones": (
        "[1]  first",
        "[1+] first",
        "8: [2] is out of order: positions go 1, 2, 3 and only the last may repeat",
    ),
    "error not a word": (
        "INVALID   never",
        "invalid never",
        "15: an error is written 'WORD  when', not 'invalid never'",
    ),
    "error unknown": ("INVALID ", "ODD ", "15: error word ODD is not one that a script may declare"),
    "error of the server": ("INVALID ", "OOM ", "15: error word OOM is not one that a script may declare"),
    "error twice": ("MOVED_ON  never", "INVALID  never", "16: error word INVALID is declared twice"),
}


@pytest.mark.parametrize(("old", "new", "message"), HEADER_ERRORS.values(), ids=HEADER_ERRORS)
def test_broken_header_is_named_with_file_and_line(
    tmp_path: Path, write: Write, old: str, new: str, message: str
) -> None:
    assert HEADER.count(old) == 1
    write("verb", HEADER.replace(old, new))
    with pytest.raises(ScriptError) as caught:
        lua.load_from(tmp_path, "verb")
    assert str(caught.value).startswith(f"lua/verb.lua:{message}")


@pytest.mark.parametrize("name", ["two", "../two", "Sessions/one"])
def test_unknown_script_is_answered_with_the_known_ones(tmp_path: Path, write: Write, name: str) -> None:
    write("sessions/one", f"{HEADER}return 1\n")
    write("includes/shared", "local x = 1\n")
    with pytest.raises(ScriptError, match=rf"there is no Lua script '{name}' in .*: one of sessions/one$"):
        lua.load_from(tmp_path, name)


def test_empty_file_is_refused(tmp_path: Path, write: Write) -> None:
    write("verb", "")
    with pytest.raises(ScriptError, match=r"^lua/verb\.lua is empty$"):
        lua.load_from(tmp_path, "verb")


@pytest.mark.parametrize(
    ("code", "place"),
    [
        pytest.param(
            '--- @include "includes/broken"\nreturn broken()\n', r"lua/includes/broken\.lua:3", id="error of the server"
        ),
        pytest.param("local x = = 1\n", r"lua/verb\.lua:20: unexpected symbol near '='", id="syntax"),
    ],
)
def test_error_at_the_server_names_file_and_line_of_the_source(
    client: RedisClient, tmp_path: Path, write: Write, code: str, place: str
) -> None:
    write("includes/broken", "-- comment\nlocal function broken()\n    return redis.call('NOSUCH')\nend\n")
    write("verb", f"{HEADER}{code}")
    with pytest.raises(ScriptError, match=rf"^verb: .*{place}"):
        ScriptCaller(client).call(lua.load_from(tmp_path, "verb"), ["{a}"])


def test_bundles_are_written_for_a_linter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lua.main(["--bundle", str(tmp_path / "out")]) == 0
    written = sorted((tmp_path / "out").rglob("*.lua"))
    assert sorted(capsys.readouterr().out.split()) == [str(path) for path in written]
    for path in written:
        name = path.relative_to(tmp_path / "out").with_suffix("").as_posix()
        assert path.read_text("utf-8") == lua.load(name).source
        assert "@include" not in path.read_text("utf-8")
