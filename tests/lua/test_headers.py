"""Each script's header says what its code does: keys, arguments, error words, flags."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from lua_sessions import command

from queuekeeper import assets, lua
from queuekeeper.errors import LUA_ERRORS
from queuekeeper.redis_client import connect

pytestmark = pytest.mark.lua

SCRIPTS = lua.names()
FIRST_OF = {
    "KEYS": {"FIRST_PAYLOAD", "FIRST_KEY", "FIRST_READY", "FIRST_CONSUMER_KEY", "FIRST_WAKE"},
    "ARGV": {
        "FIRST_TRIPLE",
        "FIRST_PAIR",
        "FIRST_SERIAL",
        "FIRST_MEMBER",
        "FIRST_PACKET_ID",
        "FIRST_EXPIRY",
        "FIRST_COMMAND",
        "FIRST_ID",
        "FIRST_VALUE",
        "FIRST_ENTRY",
        "FIRST_SEQUENCE",
        "FIRST_ROW",
        "FIRST_CLIENT_ID",
        "FIRST_FIELD",
    },
}
"""Constants that name the first of the repeated keys or arguments."""
BOUNDED = {
    "compacted/drop": "wake",
    "compacted/fetch": "in_flight",
    "compacted/heartbeat": "wake",
    "compacted/release": "wake",
    "compacted/rewind": "wake",
    "compacted/skip": "wake",
    "compacted/subscribe": "wake",
}
"""Scripts that add on a full server, as nobody could drain it otherwise: the one set that each adds to is bounded."""

QUEUES = ("fanout/",)
"""Areas whose consumers move what is stored: they have to go on when memory is full, so that it can be freed."""


def code(name: str) -> str:
    """Return the bundle without comments and header."""
    text = lua.load(name).source.split("\n]]\n", 1)[1]
    return re.sub(r"--[^\n]*", "", text)


def constants(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^local ([A-Z_]+) = (\d+)$", text, re.MULTILINE)}


def failing(check: Callable[[str], None]) -> dict[str, str]:
    """Return the scripts that a check does not let pass, with what it says of each."""
    found: dict[str, str] = {}
    for name in SCRIPTS:
        try:
            check(name)
        except AssertionError as error:
            found[name] = str(error)
    return found


def of_every_script(check: Callable[[str], None]) -> Callable[[], None]:
    """Return a test that names all scripts which a check does not let pass."""

    def test() -> None:
        assert failing(check) == {}

    return test


def test_there_are_scripts_and_every_file_is_one_or_an_include() -> None:
    root = assets.directory("lua")
    assert {"sessions/drop_import", "sessions/import_session"} <= set(SCRIPTS)
    for path in root.rglob("*.lua"):
        begins = path.read_text("utf-8").startswith("#!lua")
        assert begins != (path.parent.name == "includes"), path


@of_every_script
def test_highest_index_in_the_code_is_the_last_declared(name: str) -> None:
    script = lua.load(name)
    text = code(name)
    known = constants(text)
    for table, declared in (("KEYS", script.keys), ("ARGV", script.args)):
        used = [int(index) for index in re.findall(rf"\b{table}\[(\d+)\]", text)]
        # Repeated ones are reached from a constant that names the first of them.
        repeated = [value for constant, value in known.items() if constant in FIRST_OF[table]]
        repeated += [int(index) for index in re.findall(rf"\bunpack\({table}, (\d+)\)", text)]
        used += repeated
        if f"unpack({table})" in text:
            used.append(1)
            repeated.append(1)
        assert max(used, default=0) == len(declared), table
        assert sorted(set(used)) == list(range(1, len(declared) + 1)), table
        assert any(parameter.repeats for parameter in declared) == bool(repeated), table


@of_every_script
def test_each_key_that_gets_its_name_from_the_header_is_used(name: str) -> None:
    source = (assets.directory("lua") / f"{name}.lua").read_text("utf-8")
    keys = lua.load(name).keys if "--- @keys\n" in source else ()
    assert [key.name for key in keys if not re.search(rf"\bkeys\.{key.name}\b", code(name))] == []


@of_every_script
def test_declared_error_words_are_the_answered_ones(name: str) -> None:
    answered = re.findall(r"error_reply\(\s*'([A-Z_]+) ", code(name))
    assert code(name).count("error_reply") == len(answered), "an error word is hidden in a variable"
    assert set(answered) == set(lua.load(name).errors)
    assert set(answered) <= set(LUA_ERRORS)


@of_every_script
def test_declared_replies_are_the_returned_ones(name: str) -> None:
    declared = {word for reply in lua.load(name).returns for word in re.findall(r'^\{"([a-z]+)"', reply)}
    returned = set(re.findall(r"(?:return|and|or) \{ '([a-z]+)'", code(name)))
    assert declared == returned


def test_flags_agree_with_the_commands_that_the_code_calls(valkey_url: str) -> None:
    def check(name: str) -> None:
        script = lua.load(name)
        text = code(name)
        called = set(re.findall(r"redis\.call\(\s*'([A-Z]+)'", text))
        if not called:
            assert "redis.acl_check_cmd(" in text, "it does nothing"
            assert "no-writes" in script.flags
            return
        assert text.count("redis.call") == len(re.findall(r"redis\.call\(\s*'[A-Z]+'", text)), (
            "a command's name is hidden"
        )
        described = command(client, "COMMAND INFO", *sorted(called))
        flags = {command[0].decode().upper(): {flag.decode() for flag in command[2]} for command in described}
        assert set(flags) == called
        writes = {command for command in called if "write" in flags[command]}
        assert ("no-writes" in script.flags) == (not writes)
        assert "SORT" not in called, "its keys cannot be declared"
        if "allow-oom" in script.flags:
            added = set(re.findall(r"'ZADD', (\w+)_key", text))
            bounded = {BOUNDED[name]} if name in BOUNDED else set()
            assert name.startswith(QUEUES) or added == bounded, "a script that adds may not run on a full server"
            rewrites = re.findall(r"redis\.call\('SET', [^)]*\)", text)
            assert len(rewrites) == text.count("'SET'"), "SET hides in several lines"
            assert all("'KEEPTTL'" in rewrite for rewrite in rewrites), (
                "only what is there already may be written again"
            )
        elif writes:
            first = re.search(r"redis\.call\(\s*'(" + "|".join(sorted(writes)) + ")'", text)
            assert first is not None
            assert "denyoom" in flags[first[1]], "the first write has to be one that a full server refuses"

    with connect(valkey_url) as client:
        assert failing(check) == {}


@of_every_script
def test_script_is_in_the_table_of_keys(name: str) -> None:
    table = (Path(__file__).resolve().parents[2] / "docs" / "keyspace.md").read_text("utf-8")
    area, _, verb = name.rpartition("/")
    # Scripts of the packed layout have a table of their own.
    tables = table.split(f"| script in `lua/{area}/` |")[1:]
    rows = "\n".join(each.partition("\n\n")[0] for each in tables)
    row = re.search(rf"^\| `{verb}` \|.*\| (.+) \|$", rows, re.MULTILINE)
    assert row is not None, f"docs/keyspace.md has no row for {name}"
    runs = {"allow-oom", "no-writes"} & lua.load(name).flags
    assert row[1] == ("runs" if runs else "refused as a whole")


@of_every_script
def test_file_is_ascii_without_tabs_and_long_lines(name: str) -> None:
    text = lua.load(name).source
    assert text.isascii()
    assert "\t" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_luacheck_finds_nothing_in_the_forms_that_count(tmp_path: Path) -> None:
    program = shutil.which("luacheck")
    assert program, "luacheck is not installed: apt-get install lua-check, or luarocks install luacheck"
    for script in SCRIPTS:
        form = lua.counting(lua.load(script))
        assert not form.writes
        (tmp_path / f"{script.replace('/', '-')}.lua").write_text(form.source, "utf-8")
    settings = Path(__file__).resolve().parents[2] / ".luacheckrc"
    done = subprocess.run(
        [program, "--no-color", "--config", str(settings), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_luacheck_finds_nothing_in_the_bundles(tmp_path: Path) -> None:
    program = shutil.which("luacheck")
    assert program, "luacheck is not installed: apt-get install lua-check, or luarocks install luacheck"
    assert lua.main(["--bundle", str(tmp_path)]) == 0
    bundles = sorted(path.relative_to(tmp_path).with_suffix("").as_posix() for path in tmp_path.rglob("*.lua"))
    assert bundles == SCRIPTS
    settings = Path(__file__).resolve().parents[2] / ".luacheckrc"
    done = subprocess.run(
        [program, "--no-color", "--config", str(settings), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "planted", ["os.execute('x')", "require('x')", "redis.cal('GET', KEYS[1])", "x = 1", "local y"]
)
def test_luacheck_knows_what_a_script_does_not_have(tmp_path: Path, planted: str) -> None:
    program = shutil.which("luacheck")
    assert program, "luacheck is not installed: apt-get install lua-check, or luarocks install luacheck"
    (tmp_path / "planted.lua").write_text(f"#!lua\n{planted}\n", "utf-8")
    settings = Path(__file__).resolve().parents[2] / ".luacheckrc"
    done = subprocess.run(
        [program, "--no-color", "--config", str(settings), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr


def included(name: str) -> set[str]:
    text = (assets.directory("lua") / f"{name}.lua").read_text("utf-8")
    named = set(re.findall(r'^\s*--- @include "([^"]+)"', text, re.MULTILINE))
    return named.union(*map(included, named))


def test_every_include_is_shared_by_scripts() -> None:
    uses = Counter(name for script in SCRIPTS for name in included(script))
    includes = {f"includes/{path.stem}" for path in (assets.directory("lua") / "includes").glob("*.lua")}

    # Python puts it into any script that only counts.
    assert {name for name in includes if uses[name] < 2} == {"includes/count_only"}
