"""Commands that call one method of a store: it says what they take and what they do.

``queues.command(FanoutQueues.retry, "Retried", "orders")`` makes the command ``retry``: its arguments and options are
parameters of the method, its help is the method's docstring, and the title stands above what the method has returned.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import ArgumentInfo

from queuekeeper.cli.command import CONFIRMS, PLANS, Call, command, options
from queuekeeper.cli.output import Shown, printable
from queuekeeper.operation import keeps
from queuekeeper.wording import sentence


@dataclass(frozen=True, kw_only=True)
class StoreCommands:
    """Makes commands of the methods of a store.

    :param group: of the commands.
    :param path: what calls the group, for examples.
    :param on: kind of their calls, whose ``store`` has the methods.
    :param arguments: the parameters that are given by position, wherever a method has them.
    :param whole: what a command works on when an argument is left out.
    """

    group: typer.Typer
    path: str
    on: type[Call]
    arguments: Mapping[str, ArgumentInfo] = field(default_factory=dict)
    whole: str = ""

    def command(
        self,
        method: Callable[..., Any],
        shows: str | Callable[..., Shown],
        *examples: str,
        name: str = "",
        words: str = "",
        more: Collection[str] = (),
        asks: str = "",
        needed: Callable[[Any], Any] = lambda _: True,
    ) -> None:
        """Make a command that calls a method.

        :param shows: title above what the method returns, or what makes that something to show. It is called with the
            call, the result, and by name with those arguments and options that it has parameters for. What is no
            argument is an option of the command, besides those of the method, or with a default of its own.
        :param examples: of calls: what stands behind the command's name.
        :param name: of the command, unless it is the method's.
        :param words: what the help says besides the method's docstring.
        :param more: parameters of the method that are options.
        :param asks: question before anything is changed. Arguments stand in braces, and fields of what was ``found``
            by the dry run of a method that knows one.
        :param needed: whether what was found is worth the question.
        """
        known, hints = inspect.signature(method).parameters, get_type_hints(method)
        taken = [self._argument(each, hints[each.name]) for each in known.values() if each.name in self.arguments]
        shown = {} if isinstance(shows, str) else dict(inspect.signature(shows).parameters)
        own = get_type_hints(shows, include_extras=True) if shown else {}
        added = [
            shown[name].replace(annotation=own[name])
            for name in [*shown][2:]
            if name in own and name not in {each.name for each in taken}
        ]
        plans = bool(asks) and "dry_run" in known
        shows_all = any(each.kind is each.VAR_KEYWORD for each in shown.values())

        def called(call: Any, **given: Any) -> Shown:
            told = {each: value for each, value in given.items() if each in known}
            act = partial(getattr(call.store, method.__name__), **told)

            def question(found: Any) -> str:
                return sentence(asks, found=found, **{each: _named(each, value) for each, value in told.items()})

            if plans:
                found = call.carry_out(lambda dry_run: act(dry_run=dry_run), question, needed=needed)
            else:
                if asks:
                    call.confirm(question(None))
                found = act()
            if isinstance(shows, str):
                return Shown(found, call.title(shows))
            return shows(call, found, **{each: value for each, value in given.items() if shows_all or each in shown})

        written: Any = called
        name = name or method.__name__.replace("_", "-")
        if asks:
            words = f"{words} {'It says how much would change, and asks first' if plans else 'It asks first'}.".strip()
        calls = "\n\n".join(f"`{self.path} {name} {each}`" for each in examples)
        written.__name__ = name
        written.__doc__ = f"{words}\n\nExample{'s' if len(examples) > 1 else ''}: {calls}".strip()
        first = inspect.Parameter("call", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=self.on)
        written.__signature__ = inspect.Signature([first, *taken, *added])
        written.__annotations__ = {each.name: each.annotation for each in (first, *taken, *added)}
        of_method = options(method, *more) if more else {}
        command(self.group, name, also=PLANS if plans else CONFIRMS if asks else (), more=of_method)(
            keeps(method)(written)
        )

    def _argument(self, parameter: inspect.Parameter, hint: Any) -> inspect.Parameter:
        """Return a parameter of the method as an argument of its command."""
        said = copy.copy(self.arguments[parameter.name])
        if parameter.default is None:
            said.help = f"{said.help} Without it, {self.whole}."
        # People write a text, whatever is made of it.
        wanted: Any = hint if said.parser is None else str
        return parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD, annotation=Annotated[wanted, said])


def _named(argument: str, value: Any) -> str:
    """Return an argument as a question names it; one that was left out stands for all of its kind."""
    return f"all {argument}s" if value is None else printable(str(value))
