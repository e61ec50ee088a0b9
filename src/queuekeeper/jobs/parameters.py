"""Parameters of jobs, each declared once: type, default, bounds, help, and the check that refuses a wrong value.

A job's parameters are a model::

    class Renaming(Parameters):
        batch_size: int = parameter(
            100, title="Batch size (keys)", help="Keys renamed by one call.", least=1, most=1_000
        )

The DAG's form (``queuekeeper.airflow.forms``), the options of the command (``queuekeeper.cli.options``), the arguments
of the operator and of the Spark job are made of the model, and all of them refuse a wrong value in the same words.
"""

from __future__ import annotations

import re
import types
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field as RecordField
from dataclasses import dataclass, make_dataclass
from difflib import get_close_matches
from enum import Enum, StrEnum
from functools import cache
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from queuekeeper.errors import UsageError
from queuekeeper.sessions.judge import MAX_EXPIRY_INTERVAL_S
from queuekeeper.wording import is_text

P = ParamSpec("P")
Part = TypeVar("Part", bound="Parameters")

MAX_DIGITS = 30
"""Most digits of a number that is read: Python refuses to read thousands, in words that name no parameter."""

_END = re.compile(r"(?<!\\)\$")
"""End of a pattern: Python would also find it before a line break that ends the text, unlike JSON schema."""

_SHOWN = 200
"""Characters of a wrong value that a refusal repeats."""

MAX_RATE_PER_S = 2_147_483_647
"""Fastest rate that a throttle can name; the column of the run holds no more."""


_GROUPED = re.compile(r"(-?\d{1,3}(?:(?:,\d{3})+|(?:_\d{3})+))((?:[.eE].*)?)")


def digits_of(text: str) -> str:
    """Return the text of a number without its separators of thousands, as ``1,000,000`` and ``1_000_000`` have them.

    A text with commas or underscores in other places is returned with them: ``1,5`` is no number.
    """
    text = text.strip()
    grouped = _GROUPED.fullmatch(text)
    return re.sub("[,_]", "", grouped[1]) + grouped[2] if grouped else text


def no_rate(rate: object, unit: str) -> UsageError:
    """Return the error that refuses a value as the throttle of a run.

    :param unit: what the throttle counts, in the plural.
    """
    return UsageError(f"the rate is {rate!r}: write {unit} per second, 1 to {MAX_RATE_PER_S:,}, or none")


class Section(StrEnum):
    """Parts of a form, in their order. Parameters without a section come first and are always unfolded."""

    TOP = ""
    RULES = "Rules"
    PACE = "Speed and time"
    APPROVAL = "Approval"
    RECORDS = "Files and records"
    CONNECTIONS = "Connections and keys"


class Kind(StrEnum):
    """Types that a parameter may have."""

    FLAG = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "string"
    LIST = "array"


def same(value: Any) -> Any:
    """Return the value, for an alias whose values have not changed their meaning."""
    return value


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Declaration of a parameter, besides its type.

    :param title: heading of the form's field, with the unit.
    :param help: what the parameter does, in whole sentences.
    :param proposed: initial value of the form, where it is not the default.
    :param unset: what holds without a value, for an optional parameter.
    :param section: part of the form.
    :param least: smallest number.
    :param most: greatest number; of a list, most entries.
    :param choices: allowed values, each with its label.
    :param pattern: regular expression for a text, or for every entry of a list.
    :param form_pattern: regular expression of the form, where commands and library accept more.
    :param longest: most characters of a text, or of every entry of a list.
    :param shortest: fewest characters of an entry of a list.
    :param needed: whether a person has to give a value; the form then begins without a valid one.
    :param rule: the rule in words, where type and bounds do not say it: "it must ...".
    :param check: raises :class:`UsageError` or :class:`ValueError` for a text, or an entry of a list, that breaks the
        rule in a way that the bounds do not say; it is refused in the words of ``rule``, which then has to be given.
    :param examples: values that a form proposes.
    :param noun: name of a list's entry in the command's usage.
    :param aliases: names of the parameter in earlier releases, each with a function that converts an old value.
    """

    title: str
    help: str
    proposed: Any = None
    unset: str = ""
    section: Section = Section.TOP
    least: float | None = None
    most: float | None = None
    choices: Mapping[str, str] | None = None
    pattern: str | None = None
    form_pattern: str | None = None
    longest: int | None = None
    shortest: int = 1
    needed: bool = False
    rule: str = ""
    check: Callable[[str], object] | None = None
    examples: Sequence[Any] = ()
    noun: str = ""
    aliases: Mapping[str, Callable[[Any], Any]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", tuple(self.examples))
        for name in ("pattern", "form_pattern"):
            if (written := getattr(self, name)) is not None:
                object.__setattr__(self, name, _END.sub(r"$(?!\\n)", written))
        if self.check is not None and not self.rule:
            raise ValueError(f"{self.title} has a check: say its rule in words")


def _declared_by(declare: Callable[P, Declaration]) -> Callable[Concatenate[Any, P], Any]:
    def parameter(default: Any, /, *args: P.args, **said: P.kwargs) -> Any:
        """Declare a parameter: the default of a model's field; see :class:`Declaration` for the rest.

        :param default: value where none is given.
        """
        declaration = declare(*args, **said)
        extra = cast(Any, {"declaration": declaration})
        return Field(default, title=declaration.title, description=declaration.help, json_schema_extra=extra)

    return parameter


parameter = _declared_by(Declaration)


def needed(*, title: str, help: str, rule: str, **said: Any) -> Any:  # noqa: A002 - as of a parameter
    """Declare a text without a default, which a person has to give."""
    return parameter("", needed=True, title=title, help=help, rule=rule, **said)


def _measured(unit: str, *, most: float) -> Callable[..., Any]:
    """Return a function that declares parameters of a unit, with the unit in the title and values from 1 to ``most``.

    :param most: greatest value of the unit; a parameter may have its own bounds.
    """

    def declared(default: Any, /, *, title: str, **said: Any) -> Any:
        return parameter(default, title=f"{title} ({unit})", **{"least": 1, "most": most, **said})

    return declared


seconds = _measured("seconds", most=MAX_EXPIRY_INTERVAL_S)
minutes = _measured("minutes", most=10_080)
days = _measured("days", most=3_650)
percent = _measured("percent", most=100)


@dataclass(frozen=True, kw_only=True)
class Described:
    """A parameter as forms, commands and operators need it.

    :param optional: whether it may have no value.
    :param enum: type of the choices, where they are an enumeration.
    :param literals: the choices, where the type is a ``Literal``.
    """

    name: str
    kind: Kind
    optional: bool
    enum: type[Enum] | None
    literals: tuple[str, ...]
    default: Any
    said: Declaration

    @property
    def choices(self) -> Mapping[str, str] | None:
        """Allowed values, with their labels."""
        names = self.literals if self.enum is None else tuple(str(each.value) for each in self.enum)
        return self.said.choices or {name: name for name in names} or None

    @property
    def rule(self) -> str:
        """What a value must be, in the words of a refusal."""
        return self._rule + (", or none" if self.optional else "")

    @property
    def _rule(self) -> str:
        said = self.said
        if said.rule:
            return said.rule
        if self.choices is not None:
            *others, last = self.choices
            return (
                f"it must be {others[0]} or {last}"
                if len(others) == 1
                else f"it must be one of {', '.join(self.choices)}"
            )
        if self.kind is Kind.FLAG:
            return "it must be true or false"
        if self.kind in {Kind.INTEGER, Kind.NUMBER}:
            bounds = _bounds(said.least, said.most)
            return f"it must be {'an integer' if self.kind is Kind.INTEGER else 'a number'}{bounds}"
        if self.kind is Kind.LIST:
            return "it must be a list of texts" + ("" if said.most is None else f", at most {said.most:,}")
        return "it must be text" + ("" if said.longest is None else f" of at most {said.longest:,} characters")

    def refuse(self, value: Any) -> UsageError:
        """Return the error that refuses a value."""
        return UsageError(refusal(self.name, value, kind=self.kind, rule=self.rule))

    def of_text(self, text: str) -> Any:
        """Return the value of a text; an empty text means no value, and so does ``none`` for a number.

        A text that is no value of the type is returned unchanged, for the model to refuse.
        """
        if self.kind is Kind.LIST:
            return tuple(line for line in text.split("\n") if line)
        if self.optional and (not text or (text == "none" and self.kind is not Kind.TEXT)):
            return None
        digits = digits_of(text)
        if self.kind is Kind.FLAG:
            return {"true": True, "false": False}.get(text.strip().lower(), text)
        if self.kind is Kind.INTEGER and re.fullmatch(rf"-?\d{{1,{MAX_DIGITS}}}", digits):
            return int(digits)
        if self.kind is Kind.NUMBER and re.fullmatch(rf"-?\d{{1,{MAX_DIGITS}}}(\.\d+)?([eE]-?\d+)?", digits):
            return float(digits)
        return text

    def to_text(self, value: Any) -> str:
        """Return the text from which :meth:`of_text` makes the value."""
        if value is None:
            return ""
        if self.kind is Kind.LIST:
            return "\n".join(value)
        return str(value)

    def settled(self, value: Any) -> Any:
        """Return a value from JSON in the model's type."""
        if self.kind is Kind.LIST and isinstance(value, list):
            return tuple(value)
        if self.kind is Kind.NUMBER and type(value) is int and abs(value) < 10**MAX_DIGITS:
            return float(value)
        if self.enum is not None and isinstance(value, str):
            return next((each for each in self.enum if each.value == value), value)
        return value

    def check(self, value: Any) -> None:
        """Refuse a value of the right type that breaks a rule.

        :raises UsageError: with one sentence that names the value and the rule.
        """
        said = self.said
        if value is None:
            return
        if said.needed and value in ("", ()):
            raise self.refuse(value)
        if self.kind in {Kind.INTEGER, Kind.NUMBER} and not (
            _between(said.least, value, said.most) and abs(value) < 10**MAX_DIGITS
        ):
            raise self.refuse(value)
        if self.kind is Kind.LIST and said.most is not None and len(value) > said.most:
            raise UsageError(too_many(self.name, value, most=said.most))
        texts = value if self.kind is Kind.LIST else (value,) if isinstance(value, str) else ()
        for text in texts:
            self.check_text(text)

    def check_text(self, text: str) -> None:
        """Refuse a text, or an entry of a list, that breaks a rule.

        :raises UsageError: with one sentence that names the text and the rule.
        """
        said = self.said
        if said.choices is not None and self.enum is None and text not in said.choices:
            raise self.refuse(text)
        if not is_text(text):
            raise UsageError(refusal(self.name, text, kind=self.kind, rule=TEXT_RULE))
        # Texts of a list are lines where one text has all of them.
        if self.kind is Kind.LIST and (len(text) < said.shortest or "\n" in text):
            raise self.refuse(text)
        if (said.longest is not None and len(text) > said.longest) or (
            said.pattern is not None and (text or not self._may_be_empty) and not re.search(said.pattern, text)
        ):
            raise self.refuse(text)
        if said.check is not None and (text or self.kind is Kind.LIST):
            try:
                said.check(text)
            except (UsageError, ValueError):
                raise self.refuse(text) from None

    @property
    def _may_be_empty(self) -> bool:
        """Whether the empty text is a value, as it is where it is the default."""
        return self.kind is Kind.TEXT and self.default == "" and not self.said.needed


class Parameters(BaseModel):
    """Parameters of a job; a wrong value is refused by one sentence that names the value and the rule.

    :func:`dataclasses.asdict` and :func:`dataclasses.replace` work on it.

    :raises UsageError: when a value is wrong, or a name is not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    __dataclass_fields__: ClassVar[dict[str, RecordField[Any]]] = {}

    def __init__(self, **values: Any) -> None:
        known = describe(type(self))
        values = dict(_renamed(known, values, Described.settled))
        try:
            super().__init__(**values)
        except ValidationError as error:
            name, *below = error.errors(include_url=False)[0]["loc"]
            if name not in known:
                raise UsageError(unknown([str(name)], known, owner="this job")) from None
            value = values[str(name)]
            for index in below:
                value = value[index] if isinstance(index, int) else value
            raise known[str(name)].refuse(value) from None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Make the functions for dataclasses work on the model."""
        super().__pydantic_init_subclass__(**kwargs)
        record: Any = make_dataclass(cls.__name__, [(name, Any, None) for name in cls.model_fields])
        cls.__dataclass_fields__ = record.__dataclass_fields__

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for each in describe(type(self)).values():
            each.check(getattr(self, each.name))
        return self

    @classmethod
    def of_texts(cls, texts: Mapping[str, Any]) -> Self:
        """Return the parameters of texts, as templates and command lines have them.

        :param texts: name -> text; a value that is no text is taken unchanged.
        :raises UsageError: when a value is wrong.
        """
        known = describe(cls)

        def read(each: Described, value: Any) -> Any:
            return each.of_text(value) if isinstance(value, str) else value

        return cls(**dict(_renamed(known, texts, read)))

    def part(self, model: type[Part]) -> Part:
        """Return the parameters that another model shares, as that model."""
        return model(**{name: getattr(self, name) for name in describe(model)})

    def to_argv(self) -> list[str]:
        """Return command-line arguments from which another program makes the same parameters by :meth:`take`."""
        return [
            f"--{name.replace('_', '-')}" + ("" if value is True else f"={text}")
            for name, each in describe(type(self)).items()
            if (value := getattr(self, name)) != each.default
            # One argument per entry of a list, so that a log shows them.
            for text in (value if each.kind is Kind.LIST and value else [each.to_text(value)])
        ]

    @classmethod
    def declare(cls, parser: ArgumentParser) -> None:
        """Declare the parameters as arguments of a program, also under their old names."""
        for name, each in describe(cls).items():
            for known in (name, *(each.said.aliases or ())):
                # A flag without an argument means true. A list may be given in several arguments.
                flag: dict[str, Any] = {"nargs": "?", "const": str(True)} if each.kind is Kind.FLAG else {}
                flag |= {"nargs": "+", "action": "extend"} if each.kind is Kind.LIST else {}
                words = each.said.help.replace("%", "%%") if known == name else SUPPRESS
                parser.add_argument(f"--{known.replace('_', '-')}", dest=known, help=words, **flag)

    @classmethod
    def take(cls, arguments: dict[str, Any]) -> Self:
        """Take the parameters out of a program's arguments; missing ones have their defaults.

        :raises UsageError: when a value is wrong.
        """
        known = [old for name, each in describe(cls).items() for old in (name, *(each.said.aliases or ()))]
        given = {name: arguments.pop(name, None) for name in known}
        lists = {name: "\n".join(text) if isinstance(text, list) else text for name, text in given.items()}
        return cls.of_texts({name: text for name, text in lists.items() if text is not None})


@cache
def describe(model: type[Parameters]) -> dict[str, Described]:
    """Return the parameters of a model by name, in their order.

    :raises TypeError: when a field is written without a declaration.
    """
    hints = get_type_hints(model)
    found = {}
    for name, field in model.model_fields.items():
        extra: Any = field.json_schema_extra
        if not extra:
            raise TypeError(f"{model.__name__}.{name} has no declaration: write `{name}: ... = parameter(...)`")
        found[name] = described(name, hints[name], default=field.default, said=extra["declaration"])
    return found


def described(name: str, wanted: Any, *, default: Any, said: Declaration) -> Described:
    """Return the description of a parameter; of a union, the first type that is not None counts."""
    optional = types.NoneType in get_args(wanted)
    if get_origin(wanted) in {Union, types.UnionType}:
        wanted, *_ = [each for each in get_args(wanted) if each is not types.NoneType]
    is_enum = isinstance(wanted, type) and issubclass(wanted, Enum)
    return Described(
        name=name,
        kind=Kind.LIST if get_origin(wanted) is tuple else _KINDS.get(wanted, Kind.TEXT),
        optional=optional,
        enum=wanted if is_enum else None,
        literals=get_args(wanted) if get_origin(wanted) is Literal else (),
        default=default,
        said=said,
    )


TEXT_RULE = "it must be text in UTF-8, without a zero character"
"""What every text must be, in the words of a refusal."""

_KINDS: dict[Any, Kind] = {bool: Kind.FLAG, int: Kind.INTEGER, float: Kind.NUMBER, str: Kind.TEXT}


def unknown(names: Iterable[str], known: Iterable[str], *, owner: str) -> str:
    """Return the sentence that refuses unknown names of parameters, with the nearest known name.

    :param owner: model or job with the known parameters.
    """
    known = sorted(known)
    words = []
    for name in names:
        nearest = get_close_matches(name, known, n=1)
        words.append(f"{name!r} (did you mean {nearest[0]!r}?)" if nearest else f"{name!r}")
    return f"unknown parameter {', '.join(words)}: {owner} has {', '.join(known)}"


def _renamed(
    known: Mapping[str, Described], values: Mapping[str, Any], read: Callable[[Described, Any], Any]
) -> Iterable[tuple[str, Any]]:
    """Yield values under their present names."""
    old = {alias: (each, turned) for each in known.values() for alias, turned in (each.said.aliases or {}).items()}
    for name, value in values.items():
        if name in old:
            each, turned = old[name]
            if each.name in values:
                raise UsageError(f"{name} is the old name of {each.name}: name one of them")
            yield each.name, turned(read(each, value))
        else:
            yield name, read(known[name], value) if name in known else value


def _between(least: float | None, value: float, most: float | None) -> bool:
    return (least is None or least <= value) and (most is None or value <= most)


def _bounds(least: float | None, most: float | None) -> str:
    if most is None:
        return "" if least is None else f" of {least:,} or more"
    return f" from {least or 0:,} to {most:,}"


def refusal(name: str, value: Any, *, kind: Kind, rule: str) -> str:
    """Return the sentence that refuses a value of a parameter.

    :param rule: what a value must be.
    """
    if kind is Kind.NUMBER and isinstance(value, float) and value.is_integer():
        value = int(value)  # as it was written
    return f"{name} is {shown(value)}: {rule}"


def too_many(name: str, value: Sequence[Any], *, most: float) -> str:
    """Return the sentence that refuses a list for its length."""
    return f"{name} has {len(value):,} entries: at most {most:,} are allowed"


def shown(value: Any) -> str:
    """Return a value as a refusal shows it, cut where it is long."""
    if type(value) is int and abs(value) >= 10**MAX_DIGITS:
        return f"a number of more than {MAX_DIGITS} digits"
    text = repr(value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."
