"""Options and arguments of commands, made of a job's model: name, type, default, unit and help stand there only.

The model is imported when its command is called or asked for its help, so that the help of all others answers at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from queuekeeper.cli import context
from queuekeeper.errors import UsageError

if TYPE_CHECKING:
    from queuekeeper.jobs.parameters import Described, Parameters


METAVARS: Mapping[type, str] = {str: "TEXT", int: "INTEGER", float: "NUMBER"}
"""What the usage shows for a value of an option, by its type."""

TAKEN = "queuekeeper_parameters"
"""Under this name a call carries the parameters to its command."""


@dataclass(frozen=True)
class Taken:
    """What a command takes of a job's model; it is called with the checked model as ``parameters``.

    :param model: imports and returns it.
    :param argument: the parameter that is given by position; the others are options.
    :param fixed: values of parameters that the command decides where the model has them; they are no options.
    :param only: the parameters that the command asks for, where it does not ask for all.
    :param names: of parameters, the options besides those of their own names.
    """

    model: Callable[[], type[Parameters]]
    _: KW_ONLY
    argument: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    only: Collection[str] = ()
    names: Mapping[str, Collection[str]] = field(default_factory=dict)

    def described(self) -> dict[str, Described]:
        """Return the parameters that the command asks for."""
        from queuekeeper.jobs.parameters import describe

        known = describe(self.model())
        return {name: known[name] for name in known if name not in self.fixed and name in (self.only or known)}

    def needs_some(self) -> bool:
        """Return whether the command cannot begin anything without a value of some parameter."""
        return any(each.said.needed for each in self.described().values())

    def options(self) -> list[Any]:
        """Return the options and the argument, as the command line parses them."""
        kept = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for each in self.described().values()
            for name, annotation in self._annotations(each)
        ]

        def given(**_: Any) -> None:
            """Stand for the command, whose own options are known already."""

        given.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
        given.__annotations__ = {}
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(given)
        return list(get_command(app).params)

    def read(self, given: Mapping[str, Any]) -> Parameters:
        """Return the parameters of a call; what it does not say has its default, the key prefix that of the settings.

        :raises UsageError: when a value is refused.
        """
        said: dict[str, Any] = {name: value for name, value in given.items() if value not in (None, (), [])}
        for name, each in self.described().items():
            # A form sends a field that is left out as an empty text; here it is a variable that a script has not set.
            if said.get(name) == "" and each.said.unset and each.said.pattern is not None:
                raise each.refuse("")
        if "key_prefix" in self.described():
            said.setdefault("key_prefix", context.settings().key_prefix)
        model = self.model()
        return model.of_texts(said | {name: self.fixed[name] for name in self.fixed if name in model.model_fields})

    def _annotations(self, each: Described) -> Iterator[tuple[str, Any]]:
        """Yield the parameter, and its names of earlier releases, which the help leaves out."""
        if each.name == self.argument:
            yield each.name, _argument(each)
            return
        option = f"--{each.name.replace('_', '-')}"
        names = [f"{option}/--no-{option[2:]}"] if each.kind == "boolean" else [option]
        yield each.name, _option(each, [*names, *self.names.get(each.name, ())])
        for old in each.said.aliases or ():
            yield old, _option(each, [f"--{old.replace('_', '-')}"], hidden=True)


takes = Taken
"""As declarations read: ``@command(app, asks=takes(lambda: SessionRules))``."""


class JobCommand(TyperCommand):
    """A command that takes parameters, if its callback is told so by ``taken``, or any other."""

    _options: list[Any] | None = None

    @property
    def params(self) -> list[Any]:
        """What the command is asked with; its model is imported when somebody wants to know."""
        if self._taken is None:
            return self._own
        if self._options is None:
            self._options = [*self._taken.options(), *self._own]
        return self._options

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._own = own

    @property
    def _taken(self) -> Taken | None:
        return getattr(self.callback, "taken", None)

    def invoke(self, ctx: Any) -> Any:
        """Check the parameters and call the command with them."""
        if self._taken is not None:
            own = {each.name for each in self._own}
            given = {name: ctx.params.pop(name) for name in [*ctx.params] if name not in own}
            if run_id := ctx.params.get("go_on"):
                _refuse_besides(run_id, given)
            # A run that goes on has its own parameters; what a new one needs is not asked for.
            ctx.meta[TAKEN] = None if run_id and self._taken.needs_some() else self._taken.read(given)
        return super().invoke(ctx)


def _refuse_besides(run_id: str, given: Mapping[str, Any]) -> None:
    """Refuse parameters of a run that goes on: it has those of its plan.

    :raises UsageError: naming those that were given.
    """
    said = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, (), [])]
    if said:
        raise UsageError(f"run {run_id} goes on as it was planned: leave out {', '.join(said)}")


def _help(each: Described) -> str:
    words, said = each.said.help, each.said
    may_be_none = each.optional and each.kind != "string"
    if each.kind == "boolean":
        words += f" Default: {'yes' if each.default else 'no'}."
    elif may_be_none and each.default is None and said.unset:
        return f"{words} Default: none ({said.unset})."
    elif each.default not in (None, "", ()):
        words += f" Default: {getattr(each.default, 'value', each.default)}."
    if said.unset:
        empty = "none" if may_be_none else "Left out"
        words += f" {empty}: {said.unset}."
    return words


def _argument(each: Described) -> Any:
    wanted: Any = list[str] if each.kind == "array" else str
    return Annotated[wanted | None, typer.Argument(metavar=each.said.noun or each.name.upper(), help=_help(each))]


def _option(each: Described, names: list[str], *, hidden: bool = False) -> Any:
    wanted: Any = {"boolean": bool, "array": list[str]}.get(each.kind, str)
    kinds = {"integer": METAVARS[int], "number": METAVARS[float], "boolean": None}
    metavar = kinds.get(each.kind, each.said.noun or METAVARS[str])
    if each.choices is not None:
        metavar = "|".join(each.choices)
    return Annotated[wanted | None, typer.Option(*names, metavar=metavar, help=_help(each), hidden=hidden)]
