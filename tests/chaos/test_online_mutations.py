"""What online migration rests on, taken out piece by piece: each time a scenario that holds otherwise has to fail.

A piece is a text in one of our files. A list that names text which is no longer there fails too, so that it is kept up.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from queuekeeper import postgres
from queuekeeper.embedded import PostgresServer
from tests.chaos.online_scenarios import POSTGRES_VARIABLE, REDIS_VARIABLE, SCENARIOS, VIOLATED, play

pytestmark = pytest.mark.chaos

ROOT = Path(__file__).parents[2]
_FUNCTIONS = "sql/queuekeeper/functions/"
_MOVER = "src/queuekeeper/migration/online/mover.py"
_names = count(1)

_EQUAL = "            if not left and not bad:\n                moved"
_RAISED = "                if left:"
_HELD_FIRST = """\
        async with self._transaction(limit_ms=self._mirror_ms):
            owned = await self._owners.hold(client_id, driver=None, epoch=None)
"""
_READ_FIRST = (
    "        outbox = await store.read_outbox(client_id)\n"
    "        snapshot = await self._target.read(client_id, serials=outbox.serials)\n" + _HELD_FIRST
)
_READ_BEHIND = """\
            outbox = await store.read_outbox(client_id)
            if outbox is None:
                return False
            snapshot = await self._target.read(client_id, serials=outbox.serials)
"""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One piece that is taken out.

    :param what: it, in words.
    :param file: where it is.
    :param pieces: texts, each of which is there once, and what takes their place.
    :param scenario: which has to fail then.
    :param more: further files and their pieces.
    """

    what: str
    file: str
    pieces: tuple[tuple[str, str], ...]
    scenario: str
    more: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()

    @property
    def files(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """All pieces by file."""
        return {self.file: self.pieces} | dict(self.more)


MUTATIONS = (
    Mutation(
        what="Redis does not look at the epoch",
        file="lua/includes/guard.lua",
        pieces=(("if claimed ~= '' and claimed ~= noted[3] then", "if false then"),),
        scenario="answer_of_an_earlier_stay_in_redis_removes_nothing",
    ),
    Mutation(
        what="PostgreSQL does not look at the epoch",
        file=_FUNCTIONS + "refused_owners.sql",
        pieces=(("WHEN known.epoch <> wanted.epoch THEN 'QK003'", "WHEN FALSE THEN 'QK003'"),),
        scenario="answer_of_an_earlier_stay_in_postgresql_removes_nothing",
    ),
    Mutation(
        what="Redis does not look at the owner",
        file="lua/includes/ownership.lua",
        pieces=(("return owner ~= 'postgres' and owner ~= 'fenced' and ", "return "),),
        scenario="redis_takes_nothing_for_a_session_of_postgresql",
    ),
    Mutation(
        what="PostgreSQL does not look at the owner",
        file=_FUNCTIONS + "refused_owners.sql",
        pieces=(("WHEN known.owner <> 'postgres' AND passes.driver IS NOT TRUE THEN 'QK001'", ""),),
        scenario="postgresql_takes_nothing_for_a_session_of_redis",
    ),
    Mutation(
        what="a session on its way back is not fenced in Redis",
        file=_MOVER,
        pieces=(("await self._target.close(fenced)", "pass"),),
        scenario="redis_takes_nothing_while_a_session_goes_back",
    ),
    Mutation(
        what="a life begins anew with the copy",
        file="src/queuekeeper/sessions/layouts.py",
        pieces=(
            (
                "return min(message.expires_at_ms, MAX_INSTANT_MS)",
                "return __import__('time').time_ns() // 1_000_000 + 1_000 * (message.expiry_interval_s or 0)",
            ),
        ),
        scenario="life_stays_what_the_publisher_gave",
    ),
    Mutation(
        what="a copy does not say what was sent",
        file="lua/sessions/sync_session.lua",
        pieces=(
            ("{ last_serial = last_serial, delivered_serial = delivered_serial }", "{ last_serial = last_serial }"),
        ),
        scenario="what_was_sent_is_known_to_have_been",
    ),
    Mutation(
        what="a copy does not say which batches were saved",
        file="lua/sessions/sync_session.lua",
        pieces=(("if #noted > 0 then", "if false then"),),
        scenario="batch_that_comes_again_is_stored_once",
    ),
    Mutation(
        what="the last compare before a session goes to Redis is skipped",
        file=_MOVER,
        pieces=(
            (
                "left = await self._differences_of_copy(to, wanted)\n" + _EQUAL,
                "left = []\n" + _EQUAL,
            ),
        ),
        scenario="copy_that_was_damaged_is_not_served",
    ),
    Mutation(
        what="the last compare before a session goes back is skipped",
        file=_MOVER,
        pieces=(
            (
                "left = await self._differences_of_copy(self._source, held)\n" + _RAISED,
                "left = []\n" + _RAISED,
            ),
        ),
        scenario="copy_that_was_damaged_does_not_go_back",
    ),
    Mutation(
        what="Redis is not told the epoch of the fence before the compare",
        file=_MOVER,
        pieces=(("await to.tell(fenced)", "pass"),),
        scenario="copy_that_was_begun_before_the_fence_comes_too_late",
    ),
    *(
        Mutation(
            what=f"{script} leaves no note in the outbox",
            file=f"lua/sessions/{script}.lua",
            pieces=((text, ""),),
            scenario="every_change_reaches_the_mirror",
        )
        for script, text in (
            ("ack", "note_change(session_key, serial_runs(serials))"),
            ("purge_session", "note_change(session_key, '*')"),
            ("mark_delivered", "note_change(session_key, '-')"),
        )
    ),
    Mutation(
        what="the outbox is emptied without a look at its version",
        file="lua/includes/outbox_read.lua",
        pieces=(("if fields[2] ~= ARGV[2] then", "if false then"),),
        scenario="change_while_the_mirror_writes_is_not_forgotten",
    ),
    Mutation(
        what="the mirror writes what it has read before it held the row",
        file=_MOVER,
        pieces=(
            (_HELD_FIRST, _READ_FIRST),
            (_READ_BEHIND, ""),
        ),
        scenario="older_mirror_does_not_undo_a_newer_one",
    ),
    Mutation(
        what="writers do not hold the row of their session",
        file=_FUNCTIONS + "refused_owners.sql",
        pieces=(
            (
                "        ORDER BY known.client_id\n        FOR SHARE;\n    END IF;\n\n    RETURN QUERY",
                "        ORDER BY known.client_id;\n    END IF;\n\n    RETURN QUERY",
            ),
        ),
        scenario="fence_waits_for_a_writer_in_progress",
    ),
    Mutation(
        what="the owner changes whatever has become of the fence",
        file="sql/sessions/flip_owner.sql",
        pieces=(
            ("    AND known.state = 'fenced'\n", ""),
            ("    AND known.epoch = %(epoch)s\n", "    AND %(epoch)s::bigint IS NOT NULL\n"),
            ("    AND clock_timestamp() < known.fenced_until\n", ""),
        ),
        scenario="fence_ends_by_itself_and_its_driver_changes_nothing_then",
    ),
    Mutation(
        what="the owner changes without a look at the time of the fence",
        file="sql/sessions/flip_owner.sql",
        pieces=(("    AND clock_timestamp() < known.fenced_until\n", ""),),
        # Whoever holds a row lifts a fence whose time is over; that would hide it.
        more=(
            (
                _FUNCTIONS + "refused_owners.sql",
                (
                    (
                        "SET state = 'settled', epoch = known.epoch + 1, fenced_until = NULL\n",
                        "SET state = known.state\n",
                    ),
                ),
            ),
        ),
        scenario="nobody_changes_an_owner_behind_the_end_of_the_fence",
    ),
    Mutation(
        what="a driver goes on that was replaced",
        file="sql/sessions/flip_owner.sql",
        pieces=(("    -- include: kept_driver\n", ""),),
        scenario="driver_that_was_replaced_moves_nobody",
    ),
    Mutation(
        what="callers do not tell Redis what PostgreSQL says",
        file="src/queuekeeper/sessions/router/finding.py",
        pieces=(("        if not told:\n            return set()\n", "        return set()\n"),),
        scenario="caller_tells_redis_what_a_driver_did_not",
    ),
    Mutation(
        what="a copy does not tell Redis first that a session is PostgreSQL's again",
        file="src/queuekeeper/migration/online/sides.py",
        pieces=(("await self.tell(owned)", "pass"),),
        scenario="copy_follows_a_rollback_whose_driver_was_killed",
    ),
)


@pytest.fixture
def database(postgres_server: PostgresServer, online_template: str) -> Iterator[str]:
    """Address of a database with all tables, of the test's own."""
    postgres_server.start()
    name = f"mutation_{os.getpid()}_{next(_names)}"
    yield postgres_server.create_database(name, template=online_template)
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Path]]:
    """Change one file of a copy of the code; the next change puts the one before back."""
    home = tmp_path_factory.mktemp("mutant")
    for area in ("src", "lua", "sql", "expectations"):
        # With what Python has compiled, which is known by time and size of the source.
        shutil.copytree(ROOT / area, home / area)
    shutil.copy2(ROOT / "pyproject.toml", home)
    changed: list[str] = []

    def change(file: str, text: str) -> Path:
        if not text:
            while changed:
                shutil.copy2(ROOT / changed[-1], home / changed.pop())
            return home
        (home / file).write_text(text, "utf-8")
        changed.append(file)
        return home

    yield change
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_promise_is_kept(name: str, database: str, valkey_url: str) -> None:
    asyncio.run(play(name, postgres_url=database, redis_url=valkey_url))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.what.replace(" ", "_"))
def test_promise_is_broken_without(
    mutation: Mutation, database: str, valkey_url: str, copied: Callable[[str, str], Path]
) -> None:
    home = copied("", "")
    for file, pieces in mutation.files.items():
        text = (ROOT / file).read_text("utf-8")
        for piece, other in pieces:
            assert text.count(piece) == 1, f"{file} holds this {text.count(piece)} times: {piece}"
            text = text.replace(piece, other)
        home = copied(file, text)
        if file.startswith(_FUNCTIONS):
            with postgres.connect(database, autocommit=True) as connection:
                connection.execute(text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").encode())

    played = subprocess.run(
        [sys.executable, "-m", "tests.chaos.online_scenarios", mutation.scenario],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(home / "src"), POSTGRES_VARIABLE: database, REDIS_VARIABLE: valkey_url},
        capture_output=True,
        text=True,
        check=False,
    )

    print(played.stdout)
    assert played.returncode == VIOLATED, f"{mutation.scenario} still holds:\n{played.stdout}{played.stderr}"
    assert played.stdout.startswith("violated: ")


def test_each_scenario_is_there_for_something() -> None:
    assert {mutation.scenario for mutation in MUTATIONS} == set(SCENARIOS)
