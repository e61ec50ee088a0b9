"""What every command needs: settings, connections found by one rule, and errors as sentences with an exit code."""

from __future__ import annotations

import errno
import getpass
import os
import re
import shlex
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer
from typer.core import TyperGroup

from queuekeeper.cli.output import printable, screen, stdout_for_results
from queuekeeper.errors import (
    MaintenanceRunning,
    MissingExtra,
    QueuekeeperError,
    RefusedError,
    ServerUnavailable,
    StalePlan,
    StoreFull,
    UsageError,
)

if TYPE_CHECKING:
    from queuekeeper.config import Settings
    from queuekeeper.migration.spark.session import Session
    from queuekeeper.postgres import Connection
    from queuekeeper.redis_client import RedisClient

SparkMaster = Annotated[
    str | None,
    typer.Option(
        "--spark-master",
        help="URL of the Spark master, such as spark://host:7077. [default: QUEUEKEEPER_SPARK_MASTER, else local[*]]",
    ),
]


_SHOWN = 60
"""Characters of a wrong value that are repeated."""

_PASSWORD = re.compile(r"(password=)('[^']*'|[^\s&]+)")
"""As an address of PostgreSQL may have one that is no URL, or at its end."""


@dataclass
class Invocation:
    """One call of the command line.

    :param arguments: what stands behind ``queuekeeper``.
    :param secrets: texts that no message may repeat.
    """

    arguments: tuple[str, ...] = ()
    debug: bool = False
    secrets: set[str] = field(default_factory=set)


_invocation = Invocation()


def begin(*, debug: bool) -> None:
    """Start afresh: tests make several calls in one process."""
    _invocation.debug = debug
    _invocation.secrets.clear()


class CommandGroup(TyperGroup):
    """Commands whose errors are one sentence on stderr, with a way to go on, and an exit code of ``errors.py``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remember what was typed: errors repeat it."""
        _invocation.arguments = tuple(args)
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except typer.TyperException as error:
            raise self._misused(error) from None
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise _ended(1, unforeseen(error)) from None
        return rest

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find a command; one that only groups have is refused with their names."""
        word = args[0]
        if word not in self.commands:
            within = [name for name, found in self.commands.items() if word in getattr(found, "commands", {})]
            if within:
                named = " or ".join(f"`queuekeeper {name} {word}`" for name in within)
                ctx.fail(f"No such command {word!r}. Did you mean {named}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command and translate what it raises."""
        try:
            return super().invoke(ctx)
        except typer.TyperException as error:
            raise self._misused(error) from None
        except QueuekeeperError as error:
            code, sentence = error.exit_code, str(error)
            if (way_on := self._way_on(error)) and "`queuekeeper " not in sentence:
                sentence = f"{sentence.rstrip().rstrip('.')}; {way_on}"
            _trace()
        except ModuleNotFoundError as error:
            code, sentence = UsageError.exit_code, str(error)
            _trace()
        except Exception as error:
            # Typer's own exceptions carry usage errors and exit codes; a reader that left ends a pipe quietly.
            if type(error).__module__.startswith(("typer", "click")) or isinstance(error, BrokenPipeError):
                raise
            code, sentence = 1, unforeseen(error)
            _trace()
        raise _ended(code, sentence)

    def _misused(self, error: typer.TyperException) -> Exception:
        """Return what ends a call whose words do not fit, after saying why; help where a group was called alone."""
        tell = getattr(error, "format_message", None)
        if tell is None or type(error).__name__ == "NoArgsIsHelpError":
            return error
        if isinstance(error, typer.BadParameter):
            error.message = _told(error)
        said = str(tell()).rstrip(".")
        sentence = said[:1].lower() + said[1:]
        if "`queuekeeper " not in sentence:
            what = "commands" if hasattr(getattr(error, "cmd", None), "commands") else "options"
            sentence += f"; `{self._called()} --help` shows its {what}"
        return _ended(UsageError.exit_code, sentence)

    def _way_on(self, error: QueuekeeperError) -> str:
        """Return what to type after an error that does not say so itself; empty where nobody can know."""
        match error:
            case MissingExtra():
                return ""
            case UsageError():
                return f"`{self._called()} --help` shows its options"
            case ServerUnavailable():
                return "`queuekeeper doctor` examines the servers"
            case StoreFull():
                return "`queuekeeper doctor` shows memory and limit"
            case MaintenanceRunning() | StalePlan():
                return "`queuekeeper run list` shows all runs"
        return ""

    def _called(self) -> str:
        """Return the command that was called, without its arguments."""
        words, within = ["queuekeeper"], self
        for word in _invocation.arguments:
            if found := getattr(within, "commands", {}).get(word):
                words.append(word)
                within = found
        return " ".join(words)


def again(option: str) -> str:
    """Return this call with an option more, between backticks, to be pasted; passwords are left out."""
    words = [_PASSWORD.sub(r"\1***", each) for each in _invocation.arguments]
    for each in words:
        remember(each.partition("=")[2] if each.startswith("-") else each)
    return f"`{shlex.join(['queuekeeper', *words, option])}`"


def _ended(code: int, sentence: str) -> typer.Exit:
    """Say why a call ends, and return what ends it."""
    tell(sentence)
    return typer.Exit(code)


def tell(sentence: str) -> None:
    """Say on stderr what has gone wrong."""
    from rich.text import Text

    screen(stderr=True).print(Text("queuekeeper: ", style="bold red") + Text(_tidy(sentence)), soft_wrap=True)


_RULES = {
    "greater_than_equal": "it must be {ge} or more",
    "less_than_equal": "it must be {le} or less",
    "int_parsing": "it must be an integer",
    "int_parsing_size": "it must be an integer of fewer digits",
    "float_parsing": "it must be a number",
}
"""By pydantic's names of what is wrong with a value."""


def _told(error: typer.BadParameter) -> str:
    """Return what is wrong with an option, with its value: Typer tells the rule alone, in pydantic's words."""
    from pydantic import ValidationError

    if not isinstance(error.__cause__, ValidationError):
        return error.message
    first = error.__cause__.errors(include_url=False)[0]
    rule = _RULES.get(first["type"])
    if rule is None:
        return error.message.removeprefix("Value error, ")
    value = str(first["input"])
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}.."
    return f"{shown!r}: {rule.format(**first.get('ctx', {}))}"


NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def unforeseen(error: Exception) -> str:
    """Return words about an error that no part of this program has raised."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        place = f" to {error.filename}" if error.filename else ""
        return (
            f"nothing more can be written{place} ({error.strerror}): what was done stays done; make room where the "
            "output and the files of this command go, and look again"
        )
    return f"something unforeseen happened: {type(error).__name__}: {_words(error)}; --debug shows where"


def _words(error: Exception) -> str:
    """Return what an error says; the text of one of PostgreSQL's may hold the row that it is about."""
    if not type(error).__module__.startswith("psycopg"):
        return str(error)
    from queuekeeper.postgres import server_words

    return server_words(error)


def _trace() -> None:
    if _invocation.debug:
        from rich.text import Text

        screen(stderr=True).print(Text(redact(traceback.format_exc())), soft_wrap=True)


def _tidy(sentence: str) -> str:
    lines = [printable(line) for line in redact(sentence).strip().splitlines()]
    return "\n".join(lines)


def redact(text: str) -> str:
    """Return text without the passwords of this call's connections."""
    from queuekeeper.hosts import without_secret

    for secret in sorted(_invocation.secrets, key=len, reverse=True):
        text = without_secret(text, secret)
    return text


def remember(url: str) -> str:
    """Return an address whose password no message will repeat."""
    try:
        password = urlsplit(url).password
    except ValueError:
        password = None
    if password:
        _invocation.secrets |= {password, unquote(password)}
    return url


def settings() -> Settings:
    """Return the settings of the environment.

    :raises UsageError: naming the variable that is wrong.
    """
    from pydantic import ValidationError

    from queuekeeper.config import Settings

    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = "QUEUEKEEPER_" + "_".join(str(part) for part in first["loc"]).upper()
        raise UsageError(f"the environment variable {name} is wrong: {first['msg']}") from None


def postgres_address(url: str | None) -> str:
    """Return the address of the source and control database.

    :param url: what the option says.
    :raises RefusedError: when none is named and the private server does not run.
    """
    return _address(url, "PostgreSQL", "postgres")


def redis_address(url: str | None) -> str:
    """Return the address of the target; as :func:`postgres_address`."""
    return _address(url, "Redis", "redis")


def _address(url: str | None, product: str, store: str) -> str:
    known = settings()
    found, named = url, getattr(known, f"{store}_url")
    if found is None and named is not None:
        # An empty address is one.
        found = named.get_secret_value()
    if found is None:
        found = _private_addresses(known).get(store)
    if found is None:
        raise RefusedError(
            f"no {product} is named and the private one is not running: run `queuekeeper up`, or name a server by "
            f"--{store}-url or QUEUEKEEPER_{store.upper()}_URL"
        )
    return remember(found)


def _private_addresses(known: Settings) -> dict[str, str]:
    try:
        from queuekeeper.embedded import addresses_with_passwords
    except MissingExtra:
        return {}
    return addresses_with_passwords(known)


def postgres_connection(url: str | None, *, autocommit: bool = True) -> Connection:
    """Open a connection to the source and control database, which the end of a block closes."""
    from queuekeeper.postgres import connect

    return connect(postgres_address(url), autocommit=autocommit)


def redis_connection(url: str | None) -> AbstractContextManager[RedisClient]:
    """Open a connection to the target for a block."""
    from queuekeeper.redis_client import connect

    return connect(redis_address(url))


def reachable(postgres_url: str | None, redis_url: str | None) -> tuple[str, str]:
    """Return both addresses once both servers have answered: it takes Spark ten seconds to find that out."""
    source, target = postgres_address(postgres_url), redis_address(redis_url)
    with postgres_connection(source), redis_connection(target):
        return source, target


@contextmanager
def spark(name: str, master: str | None, *stores: str) -> Iterator[Session]:
    """Start Spark in this process for the block; what it prints goes to stderr.

    :param stores: URLs of the stores that executors will connect to.
    """
    from queuekeeper.java import java_home

    known = settings()
    os.environ["JAVA_HOME"] = str(java_home(known.home))
    with stdout_for_results():
        with screen(stderr=True).status("Starting Spark"):
            from queuekeeper.migration.spark.session import build_session

            session = build_session(name, master=master or known.spark_master, stores=stores, traces=_invocation.debug)
        try:
            yield session
        finally:
            session.stop()


def report_folder(directory: Path | None) -> Path:
    """Return the folder that reports are written to.

    :param directory: what an option names; none for that of the settings, which may be in an object store.
    :raises UsageError: when the option names an object store.
    """
    if directory is not None and re.match(r"[a-z][a-z0-9+.-]+:/", str(directory)):
        raise UsageError(
            f"{directory.parts[0]}// is an object store, and the option names a folder: leave it out, and set "
            "QUEUEKEEPER_REPORTS_DIR"
        )
    from queuekeeper.places import on_disk

    found = directory or settings().reports
    return found.absolute() if on_disk(found) else found


def undo_place(text: str) -> Path:
    """Return the folder or undo file that an option names, which may be in an object store.

    :param text: a path or a URL.
    :raises UsageError: when nothing that is installed opens that object store.
    """
    from queuekeeper.places import folder_or_url, opened

    return opened(folder_or_url(text, name="the option"), what="undo files", name="the option")


def person() -> str:
    """Return who calls, for the record of approvals."""
    try:
        return f"{getpass.getuser()} (command line)"
    except (OSError, KeyError):
        return "unknown user (command line)"
