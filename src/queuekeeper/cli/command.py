"""How a command is declared: it takes a call, which opens what it needs, and returns what it has to show.

A kind of call says which options its commands share, so that these are declared once, in ``shared``; what a call
opens is closed when its command ends, and what a command returns is shown as tables or as JSON.

A parameter behind the star is an option, one before it an argument; what the docstring says of it is its help.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

import typer

from queuekeeper.cli import context
from queuekeeper.cli.options import METAVARS, TAKEN, JobCommand, Taken
from queuekeeper.cli.output import Shown, print_parts, screen, show_result
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.wording import is_text

if TYPE_CHECKING:
    from queuekeeper.audit import Answer
    from queuekeeper.jobs.store import MaintenanceRuns
    from queuekeeper.migration.ledger.ledger import MigrationLedger
    from queuekeeper.postgres import Connection
    from queuekeeper.redis_client import RedisClient

Found = TypeVar("Found")
Command = Callable[..., Shown | None]
Written = TypeVar("Written", bound=Command)

Options = Mapping[str, inspect.Parameter]
"""Options by name, as Typer reads them."""

CONFIRMS = ("yes",)
"""What a command takes besides that asks before it changes something."""

PLANS = ("dry_run", "yes")
"""What a command takes besides that counts first, and asks."""

_PLACES = ("FILE", "FOLDER")
"""What the usage shows for names of files, which may be any bytes."""

_DURATION = "_ms"
"""What the names of parameters end with that are durations to people."""

_OF_PARAMETER = re.compile(r"^:param (\w+): (.+?)(?=^:|\Z)", re.MULTILINE | re.DOTALL)
_FIELDS = re.compile("^:", re.MULTILINE)
_CODE = re.compile(r"``(\w+)``")


def options(declared: Callable[..., Any], *names: str, **metavars: str) -> Options:
    """Return options that a function declares as a command does its own, or a function or record of the library.

    :param names: of the parameters that are options; all when none is named.
    :param metavars: by parameter, what the usage shows for a value.
    """
    hints, words = get_type_hints(declared, include_extras=True), _words_of(declared)
    for name, metavar in metavars.items():
        hints[name] = Annotated[hints[name], typer.Option(metavar=metavar)]
    given = inspect.signature(declared).parameters
    return {name: asked(given[name], hints[name], words.get(name, "")) for name in names or given}


def _words_of(declared: Callable[..., Any]) -> dict[str, str]:
    """Return the help of options and arguments, as a docstring has it; what it names as code is an option in help."""
    found = dict(_OF_PARAMETER.findall(inspect.getdoc(declared) or ""))

    def named(code: re.Match[str]) -> str:
        return f"--{_option_name(code[1])}" if code[1] in found else code[1]

    return {
        name: _CODE.sub(named, text[:1].upper() + text[1:])
        for name, text in ((name, " ".join(text.split())) for name, text in found.items())
    }


def _option_name(parameter: str) -> str:
    return parameter.removesuffix(_DURATION).replace("_", "-")


def asked(parameter: inspect.Parameter, hint: Any, words: str = "") -> inspect.Parameter:
    """Return a parameter as an option or an argument, with its help; what its annotation says of it stays.

    One behind the star is an option. One that ends with ``_ms`` is an option without that, which takes a duration.

    :param hint: its annotation, which may hold what Typer has to know.
    """
    default = parameter.default
    if get_origin(hint) is Annotated:
        hint, said = hint.__origin__, copy.copy(hint.__metadata__[0])
    elif parameter.kind is not parameter.KEYWORD_ONLY:
        said = typer.Argument(metavar=parameter.name.upper())
    elif parameter.name.endswith(_DURATION):
        from queuekeeper.durations import duration_ms, duration_text

        name = parameter.name.removesuffix(_DURATION)
        said = typer.Option(f"--{_option_name(name)}", metavar="DURATION", parser=lambda text: duration_ms(name, text))
        default = default if default is None else duration_text(default)
        words = words if "such as" in words else f"{words} Write it like 10s, 30m, 1h or 7d."
    else:
        # A switch has no opposite unless it says so.
        said = typer.Option(*([f"--{_option_name(parameter.name)}"] if hint is bool else []))
    said.help = said.help or words
    if said.metavar is None and parameter.kind is parameter.KEYWORD_ONLY:
        said.metavar = _metavar(parameter.name, _chosen(hint))
    return parameter.replace(annotation=Annotated[_chosen(hint), said], default=default)


def _metavar(name: str, hint: Any) -> str | None:
    """Return what the usage shows for a value of an option, in the words of :mod:`queuekeeper.cli.options`."""
    kinds = {each for part in (hint, *get_args(hint)) for each in (part, *get_args(part))}
    if Path in kinds:
        return "FOLDER" if name.endswith("directory") else "FILE"
    return next((METAVARS[kind] for kind in (float, int, str) if kind in kinds), None)


def _chosen(hint: Any) -> Any:
    """Return the type of an option: the enumeration, where the library takes its values as texts, too."""
    choices = (each for each in get_args(hint) if isinstance(each, type) and issubclass(each, Enum))
    return next((each | None for each in choices), hint)


@options
def shared(
    *,
    dry_run: bool = False,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    key_prefix: str | None = None,
    postgres_url: Annotated[str | None, typer.Option(metavar="URL")] = None,
    redis_url: Annotated[str | None, typer.Option(metavar="URL")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Declare options of many commands, in the order of the help.

    :param dry_run: Show what would be done and change nothing.
    :param yes: Go ahead without asking.
    :param key_prefix: Prefix of the Redis keys. [default: QUEUEKEEPER_KEY_PREFIX]
    :param postgres_url: URL of PostgreSQL, postgresql://user:password@host/database. Else QUEUEKEEPER_POSTGRES_URL,
        else the private server.
    :param redis_url: URL of Redis or any node of a cluster, redis://user:password@host:port. Else
        QUEUEKEEPER_REDIS_URL, else the private server.
    :param as_json: Write the result as JSON to stdout.
    """


class Call:
    """One call of a command that needs no server.

    :cvar takes: names of the shared options.
    """

    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, opened: ExitStack, given: dict[str, Any]) -> None:
        self.opened, self._given = opened, given
        self.dry_run: bool = given.get("dry_run", False)
        self.yes: bool = given.get("yes", False)
        self.as_json: bool = given.get("as_json", False)
        self.postgres_url: str | None = given.get("postgres_url")
        self.redis_url: str | None = given.get("redis_url")
        self._key_prefix: str | None = given.get("key_prefix")

    @contextmanager
    def anew(self) -> Iterator[Self]:
        """Yield the same call with connections of its own, which end with the block."""
        with ExitStack() as opened:
            yield type(self)(opened, self._given)

    @cached_property
    def connection(self) -> Connection:
        """Connection to the source and control database."""
        return self.opened.enter_context(context.postgres_connection(self.postgres_url))

    @cached_property
    def client(self) -> RedisClient:
        """Connection to the target."""
        return self.opened.enter_context(context.redis_connection(self.redis_url))

    @cached_property
    def runs(self) -> MaintenanceRuns:
        """Records of jobs."""
        from queuekeeper.jobs.store import MaintenanceRuns

        return MaintenanceRuns(self.connection)

    def runs_if_any(self, *, needed: bool = False) -> MaintenanceRuns:
        """Return the records of jobs, with the control schema as it must be; without PostgreSQL, one run in memory.

        A private PostgreSQL counts as one whether or not it runs.

        :param needed: it cannot be done without: what is worked on is there, too.
        """
        from queuekeeper.jobs.unrecorded import UnrecordedRuns
        from queuekeeper.schema_migrations import migrate

        known = context.settings()
        named = self.postgres_url is not None or known.postgres_url is not None
        if not (needed or named or (known.home / "postgres").exists()):
            return UnrecordedRuns()
        migrate(self.connection)
        return self.runs

    @cached_property
    def ledger(self) -> MigrationLedger:
        """Records of migrations."""
        from queuekeeper.migration.ledger.ledger import MigrationLedger

        return MigrationLedger(self.connection)

    @property
    def key_prefix(self) -> str:
        """What stands before every key: what the option says, else the settings."""
        return context.settings().key_prefix if self._key_prefix is None else self._key_prefix

    def confirm(self, question: str, *, note: Callable[[Answer], None] | None = None) -> None:
        """Ask before something is written, unless the answer was given beforehand.

        :param note: puts the answer on record; none where nothing is kept of what is asked about.
        :raises RefusedError: when nobody can be asked, or the answer is no.
        """
        unasked = not self.yes and (self.as_json or not sys.stdin.isatty())
        agreed = self.yes or (not unasked and typer.confirm(question, default=False, err=True))
        if note is not None:
            from queuekeeper.audit import Action, Answer

            action = Action.APPROVE if agreed else Action.UNANSWERED if unasked else Action.REJECT
            note(Answer(action=action, actor=context.person(), facts={"option": "--yes"} if self.yes else {}))
        if unasked:
            repeat = f"repeat the command with --yes: {context.again('--yes')}"
            raise RefusedError(f"{question} Nobody can be asked here: {repeat}")
        if not agreed:
            raise RefusedError("not confirmed: nothing was written")

    def say(self, parts: Callable[[], Iterable[Any]]) -> None:
        """Show people, before they are asked, what it is about; programs get their result and nothing else."""
        if not self.as_json:
            print_parts(screen(stderr=True), parts())

    def carry_out(
        self,
        act: Callable[[bool], Found],
        question: Callable[[Found], str],
        *,
        needed: Callable[[Found], Any] = lambda _: True,
        note: Callable[[Answer], None] | None = None,
    ) -> Found:
        """Count what would be changed; unless it is a dry run, ask, and change it.

        :param act: changes it, or, told true, only counts it.
        :param question: what is asked, from what was counted.
        :param needed: whether what was counted is worth a question.
        :param note: puts the answer on record.
        :returns: what was counted, or done.
        """
        found = act(True)
        if self.dry_run or not needed(found):
            return found
        self.confirm(question(found), note=note)
        return act(False)

    def title(self, done: str) -> str:
        """Return the title of what was done, or would be."""
        return "Dry run" if self.dry_run else done


class Plain(Call):
    """A call of a command that only has something to show."""

    takes = ("as_json",)


class OnPostgres(Call):
    """A call of a command that works on PostgreSQL."""

    takes = ("postgres_url", "as_json")


class OutOfPostgres(Call):
    """A call of a command on PostgreSQL that works until it is stopped, or streams; there is no result to show."""

    takes = ("postgres_url",)


class OnRedis(Call):
    """A call of a command that works on Redis."""

    takes = ("key_prefix", "redis_url", "as_json")


class OnBoth(Call):
    """A call of a command that works on both stores, and finds sessions in Redis by their prefix."""

    takes = ("key_prefix", "postgres_url", "redis_url", "as_json")


class OnServers(Call):
    """A call of a command that works on both stores, and whose keys' prefix is said elsewhere."""

    takes = ("postgres_url", "redis_url", "as_json")


def group(words: str | None = None) -> typer.Typer:
    """Return a group of commands.

    :param words: say what it is for, where ``application`` does not.
    """
    # Plain help wraps an address that a frame would cut off, and comes in half the time.
    return typer.Typer(no_args_is_help=True, help=words, rich_markup_mode=None)


def command(
    of: typer.Typer,
    name: str | None = None,
    *,
    also: Collection[str] = (),
    more: Options = MappingProxyType({}),
    asks: Taken | None = None,
    **told: Any,
) -> Callable[[Written], Written]:
    """Make a function a command of a group; its first parameter is the call, and what it returns is shown.

    :param name: of the command, unless it is the function's.
    :param also: shared options that it takes besides those of its kind of call.
    :param more: options that several commands of the group take, for a function with ``**options``.
    :param asks: what it takes of a job's model.
    :param told: what else the group is told of the command, such as ``short_help``.
    """

    def decorate(written: Written) -> Written:
        of.command(name, cls=JobCommand, **told)(with_call(written, also=also, more=more, asks=asks))
        return written

    return decorate


def _check_text(parameter: Any, given: Any) -> None:
    """Check that what was typed for an option or an argument is text; a file's name need not be, nor what is bytes.

    :param parameter: the option or argument, as Typer has it.
    :raises UsageError: when it is not UTF-8, which no server takes for a text.
    """
    if parameter.metavar in _PLACES:
        return
    for text in given if isinstance(given, list | tuple) else [given]:
        if isinstance(text, str) and not is_text(text):
            option = next((each for each in parameter.opts if each.startswith("--")), "")
            name = option or str(parameter.metavar).strip("[]")
            raise UsageError(f"{name} {text!r} is not UTF-8, as a text has to be")


def with_call(
    written: Command,
    *,
    also: Collection[str] = (),
    more: Options = MappingProxyType({}),
    fixed: Mapping[str, Any] = MappingProxyType({}),
    asks: Taken | None = None,
) -> Callable[..., None]:
    """Return a function as the command line calls it, with the shared options among its parameters.

    An option that the function declares itself is its own: the call has its value, too.

    :param fixed: parameters that are not asked for, with their values.
    :param asks: what it takes of a job's model, as ``parameters``; its command is a :class:`JobCommand`.
    """
    hints, words = get_type_hints(written, include_extras=True), _words_of(written)
    first, *others = inspect.signature(written).parameters.values()
    kind: type[Call] = hints[first.name]
    own = {
        each.name: asked(each, hints[each.name], words.get(each.name, ""))
        for each in others
        if each.kind is not each.VAR_KEYWORD and each.name not in fixed and each.name != "parameters"
    }
    names = own.keys() | more.keys()
    common = {name: shared[name] for name in shared if name in (*kind.takes, *also) and name not in names}

    def called(ctx: typer.Context, **given: Any) -> None:
        for each in ctx.command.params:
            _check_text(each, given.get(each.name))
        with ExitStack() as opened:
            call = kind(opened, {name: given[name] for name in shared if name in given})
            taken = {} if asks is None else {"parameters": ctx.meta[TAKEN]}
            found = written(call, **fixed, **taken, **{name: given[name] for name in names})
        if found is not None:
            show_result(found, as_json=call.as_json)

    call: Any = called
    call.__name__, call.__module__, call.taken = written.__name__, written.__module__, asks
    call.__doc__ = _FIELDS.split(inspect.getdoc(written) or "", 1)[0].rstrip()
    ctx = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    call.__signature__ = inspect.Signature([ctx, *{**own, **more, **common}.values()])
    call.__annotations__ = {name: each.annotation for name, each in call.__signature__.parameters.items()}
    return call  # type: ignore[no-any-return]
