"""The loader: includes, headers, and messages that name the file that a person edits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from queuekeeper import lua
from queuekeeper.errors import ScriptError
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


@pytest.mark.parametrize("name", INCLUDE_ERRORS)
def test_broken_include_is_named_with_file_line_and_stack(tmp_path: Path, write: Write, name: str) -> None:
    files, message = INCLUDE_ERRORS[name]
    for file, text in files.items():
        write(file, f"{HEADER}{text}\n" if file == "verb" else f"{text}\n")
    with pytest.raises(ScriptError) as caught:
        lua.load_from(tmp_path, "verb")
    assert str(caught.value) == message


HEADER_ERRORS = {
    "no shebang": (HEADER.replace("#!lua flags=no-writes", "-- lua"), "lua/verb.lua:1: the first line of a script is"),
    "unknown flag": (
        HEADER.replace("no-writes", "no-write"),
        "lua/verb.lua:1: unknown flag no-write: one of allow-cross-slot-keys, allow-oom, allow-stale, no-cluster,",
    ),
    "no header": ("#!lua\nreturn 1\n", "lua/verb.lua:1: the header, a comment from --[[ to ]], has to follow"),
    "not closed": (HEADER.replace("]]\n", ""), "lua/verb.lua:2: the header is not closed with ]]"),
    "section missing": (
        HEADER.replace("Cost\n    O(1)\n", ""),
        "lua/verb.lua:17: the header has no Cost",
    ),
    "section empty": (HEADER.replace("    O(1)\n", ""), "lua/verb.lua:18: the header has no Cost"),
    "section out of order": (
        HEADER.replace("Returns", "Errors", 1),
        "lua/verb.lua:12: the header goes on with 'Returns', not with 'Errors'",
    ),
    "section too many": (
        HEADER.replace("    O(1)\n", "    O(1)\nMore\n"),
        "lua/verb.lua:19: the header goes on with ']]', not with 'More'",
    ),
    "text before a section": (
        HEADER.replace("Purpose\n", ""),
        "lua/verb.lua:3: the header begins with 'Purpose'",
    ),
    "key not numbered": (
        HEADER.replace("[1]  first", "first"),
        "lua/verb.lua:7: a key or argument is written '[1] name  text' or '[4+] name  text'",
    ),
    "key out of order": (
        HEADER.replace("[1]  first", "[3]  first"),
        "lua/verb.lua:7: [3] is out of order: positions go 1, 2, 3 and only the last may repeat",
    ),
    "key after repeated ones": (
        HEADER.replace("[1]  first", "[1+] first"),
        "lua/verb.lua:8: [2] is out of order: positions go 1, 2, 3 and only the last may repeat",
    ),
    "error not a word": (
        HEADER.replace("INVALID   never", "invalid never"),
        "lua/verb.lua:15: an error is written 'WORD  when', not 'invalid never'",
    ),
    "error unknown": (
        HEADER.replace("INVALID ", "ODD "),
        "lua/verb.lua:15: error word ODD is not one that a script may declare",
    ),
    "error of the server": (
        HEADER.replace("INVALID ", "OOM "),
        "lua/verb.lua:15: error word OOM is not one that a script may declare",
    ),
    "error twice": (
        HEADER.replace("MOVED_ON  never", "INVALID  never"),
        "lua/verb.lua:16: error word INVALID is declared twice",
    ),
}


@pytest.mark.parametrize("name", HEADER_ERRORS)
def test_broken_header_is_named_with_file_and_line(tmp_path: Path, write: Write, name: str) -> None:
    text, message = HEADER_ERRORS[name]
    write("verb", text)
    with pytest.raises(ScriptError) as caught:
        lua.load_from(tmp_path, "verb")
    assert str(caught.value).startswith(message)


def test_unknown_script_is_answered_with_the_known_ones(tmp_path: Path, write: Write) -> None:
    write("sessions/one", f"{HEADER}return 1\n")
    write("includes/shared", "local x = 1\n")
    for name in ("two", "../two", "Sessions/one"):
        with pytest.raises(ScriptError, match=rf"there is no Lua script '{name}' in .*: one of sessions/one$"):
            lua.load_from(tmp_path, name)


def test_empty_file_is_refused(tmp_path: Path, write: Write) -> None:
    write("verb", "")
    with pytest.raises(ScriptError, match=r"^lua/verb\.lua is empty$"):
        lua.load_from(tmp_path, "verb")


def test_error_of_the_server_names_file_and_line_of_the_source(
    client: RedisClient, tmp_path: Path, write: Write
) -> None:
    write("includes/broken", "-- comment\nlocal function broken()\n    return redis.call('NOSUCH')\nend\n")
    write("verb", f'{HEADER}--- @include "includes/broken"\nreturn broken()\n')
    with pytest.raises(ScriptError, match=r"^verb: .*lua/includes/broken\.lua:3.*"):
        ScriptCaller(client).call(lua.load_from(tmp_path, "verb"), ["{a}"])


def test_syntax_error_names_file_and_line_of_the_source(client: RedisClient, tmp_path: Path, write: Write) -> None:
    write("verb", f"{HEADER}local x = = 1\n")
    with pytest.raises(ScriptError, match=r"^verb: .*lua/verb\.lua:20: unexpected symbol near '='"):
        ScriptCaller(client).call(lua.load_from(tmp_path, "verb"), ["{a}"])


def test_bundles_are_written_for_a_linter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lua.main(["--bundle", str(tmp_path / "out")]) == 0
    written = sorted((tmp_path / "out").rglob("*.lua"))
    assert sorted(capsys.readouterr().out.split()) == [str(path) for path in written]
    for path in written:
        name = path.relative_to(tmp_path / "out").with_suffix("").as_posix()
        assert path.read_text("utf-8") == lua.load(name).source
        assert "@include" not in path.read_text("utf-8")
