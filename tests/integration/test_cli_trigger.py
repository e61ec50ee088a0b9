"""``queuekeeper migrate trigger`` on a real server: the triggers are shown, put on, looked at and taken off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuekeeper import postgres, schema_migrations, sql_statements
from queuekeeper.migration.online import foreign_writers
from queuekeeper.postgres import Connection
from tests.integration.command_line import CommandLine

pytestmark = pytest.mark.integration

COMMANDS = CommandLine(group="migrate", secret="no secret")


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    with postgres.connect(postgres_url, autocommit=True) as opened:
        opened.execute(sql_statements.statement("sessions/vendor_schema"))
        schema_migrations.migrate(opened)
        yield opened


def test_dry_run_shows_the_sql_and_changes_nothing(connection: Connection, postgres_url: str) -> None:
    result = COMMANDS.run("trigger", "install", "--dry-run", "--postgres-url", postgres_url)

    assert result.exit_code == 0, result.output
    assert "CREATE OR REPLACE TRIGGER queuekeeper_refuse_moved_session" in result.stdout
    assert "nothing was changed" in result.stdout
    assert not any(trigger.installed for trigger in foreign_writers.state(connection).triggers)
    shown = COMMANDS.as_json("trigger", "install", "--dry-run", "--postgres-url", postgres_url)
    for statement in shown["statements"]:
        assert f"{statement};\n" in result.stdout, "it is there to be copied"
        connection.execute(statement.encode())
    assert foreign_writers.state(connection).complete


def test_triggers_are_put_on_looked_at_and_taken_off(connection: Connection, postgres_url: str) -> None:
    server = ("--postgres-url", postgres_url)
    COMMANDS.fails("trigger", "install", *server, code=4, words="repeat the command with --yes")
    assert not foreign_writers.state(connection).complete

    assert COMMANDS.as_json("trigger", "install", "--yes", *server)["complete"] is True
    assert COMMANDS.as_json("trigger", "status", *server) == {
        "complete": True,
        "dry_run": False,
        "moved": 0,
        "statements": [],
        "triggers": [
            {"table": table, "installed": True, "enabled": True}
            for table in ("device_publish_msg", "device_session_ctx")
        ],
    }

    COMMANDS.fails("trigger", "remove", *server, code=4, words="copies of 0 sessions that Redis owns")
    assert COMMANDS.as_json("trigger", "remove", "--dry-run", *server)["complete"] is True
    assert COMMANDS.as_json("trigger", "remove", "--yes", *server)["complete"] is False
    assert COMMANDS.run("trigger", "status", *server).exit_code == 0


def test_database_without_the_tables_is_named(postgres_url: str) -> None:
    COMMANDS.fails(
        "trigger",
        "status",
        "--postgres-url",
        postgres_url,
        code=4,
        words="run `queuekeeper database migrate`",
    )
