"""A group of commands as tests call it: for people, as JSON, and as something that fails in words."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner, Result

from queuekeeper import postgres, redis_client
from queuekeeper.cli import app


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """Calls the commands of a group.

    :param group: name of the group; empty for all commands.
    :param secret: content that no failure may repeat, where there is such.
    """

    group: str = ""
    secret: str = ""

    def run(self, *arguments: str, given: str | bytes | None = None) -> Result:
        """Call a command.

        :param given: what it finds on stdin.
        """
        return CliRunner().invoke(app, [*self.group.split(), *arguments], input=given)

    def as_json(self, *arguments: str, code: int = 0, given: str | bytes | None = None) -> Any:
        """Call a command and return its result.

        :param code: how it exits.
        """
        result = self.run(*arguments, "--json", given=given)
        assert result.exit_code == code, result.stderr
        return json.loads(result.stdout)

    def consumed(self, *arguments: str) -> list[Any]:
        """Consume, and return the messages."""
        result = self.run("consume", *arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    def fails(self, *arguments: str, code: int, words: str, given: str | bytes | None = None) -> Result:
        """Call a command that fails.

        :param code: how it exits.
        :param words: expression that stderr matches, its white space as single spaces.
        """
        result = self.run(*arguments, given=given)
        assert result.exit_code == code, result.output
        assert re.search(words, " ".join(result.stderr.split())), result.stderr
        assert "Traceback" not in result.stderr
        assert not self.secret or self.secret not in result.output
        return result


class Servers:
    """A Redis and a PostgreSQL, and the options that name them."""

    def __init__(self, redis_url: str, postgres_url: str) -> None:
        self.client: Any = redis_client.connect(redis_url)
        self.connection = postgres.connect(postgres_url, autocommit=True)
        self.options = ("--redis-url", redis_url, "--postgres-url", postgres_url)

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
        self.connection.close()
