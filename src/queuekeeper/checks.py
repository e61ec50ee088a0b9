"""Refuses wrong arguments at the doors of the library: types by the annotations of what is called, then values."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum, StrEnum
from functools import cache, wraps
from math import inf
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from queuekeeper.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

DAY_S = 86_400.0

Fits = Callable[[Any], bool]
"""Tells whether a value is of a type."""


class Wrong(NamedTuple):
    """An argument of a wrong type.

    :param words: argument, value and rule.
    """

    value: Any
    words: str

    def is_told_by(self, words: str) -> bool:
        """Return whether a refusal is of this value: that of a text may be of its first letter, or of having none."""
        value = self.value
        return not isinstance(value, str | bytes | Mapping) or repr(value) in words or shown(value) in words


class Arguments:
    """The arguments of a function, and the types that its annotations name.

    What every call asks is compiled for the signature, at the first call, when all that the annotations name is there.

    :param of_method: the arguments lack the first one, which is the object.
    :param unchecked: arguments that may be of any type.
    :ivar fit: tells whether given arguments are of their types. What is missing or too much is a ``TypeError``, as it
        is of the function.
    """

    __slots__ = ("_function", "_of_method", "_unchecked", "fit")

    def __init__(self, function: Callable[..., Any], *, of_method: bool = False, unchecked: Sequence[str] = ()) -> None:
        self._function, self._of_method, self._unchecked = function, of_method, unchecked
        self.fit: Callable[..., bool] = self._first

    def wrong(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Wrong:
        """Return the first one that is not of its type, of arguments that do not fit."""
        rules = self._rules()
        given = self._signature().bind(*args, **kwargs).arguments
        return next(
            Wrong(value, _words(name, value, rules[name][1]))
            for name, value in given.items()
            if name in rules and not rules[name][0](value)
        )

    def _first(self, *args: Any, **kwargs: Any) -> bool:
        self.fit = self._compiled()
        return self.fit(*args, **kwargs)

    def _compiled(self) -> Callable[..., bool]:
        signature, rules, space = self._signature(), self._rules(), dict[str, Any]()
        head, tests = list[inspect.Parameter](), list[str]()
        for name, parameter in signature.parameters.items():
            ways = [f"_fits_{name}({name})"]
            if name in rules and (exact := _exact(rules[name][1])) is not None:
                space[f"_exact_{name}"] = exact
                ways.insert(0, f"type({name}) is _exact_{name}")
            bare = parameter.replace(annotation=parameter.empty)
            if parameter.default is not parameter.empty:
                space[f"_default_{name}"] = parameter.default
                ways.insert(0, f"{name} is _default_{name}")
                bare = bare.replace(default=_Name(f"_default_{name}"))
            head.append(bare)
            if name in rules:
                space[f"_fits_{name}"] = rules[name][0]
                tests.append(f"({' or '.join(ways)})")
        name = self._function.__name__
        bare_signature = signature.replace(parameters=head, return_annotation=signature.empty)
        code = f"def {name}{bare_signature}:\n    return {' and '.join(tests) or True}\n"
        exec(compile(code, f"<arguments of {name}>", "exec"), space)  # noqa: S102 - made of a signature's own names
        fit: Callable[..., bool] = space[name]
        fit.__qualname__ = self._function.__qualname__
        return fit

    def _signature(self) -> inspect.Signature:
        signature = inspect.signature(self._function)
        return signature.replace(parameters=[*signature.parameters.values()][self._of_method :])

    def _rules(self) -> dict[str, tuple[Fits, Any]]:
        found: dict[str, tuple[Fits, Any]] = {}
        for name, hint in get_type_hints(self._function).items():
            parameter = inspect.signature(self._function).parameters.get(name)
            if parameter is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            fits = None if name in self._unchecked else _fitting(hint)
            if fits is not None:
                found[name] = (fits, hint)
        return found


class _Name(str):
    """A name in written code."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def checked_but(*unchecked: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return what makes :func:`checked` doors; something else may stand in for the arguments that are named."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        arguments = Arguments(function, unchecked=unchecked)

        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited_door(*args: Any, **kwargs: Any) -> Any:
                if not arguments.fit(*args, **kwargs):
                    raise UsageError(arguments.wrong(args, kwargs).words)
                return await function(*args, **kwargs)

            return awaited_door  # type: ignore[return-value]

        @wraps(function)
        def door(*args: P.args, **kwargs: P.kwargs) -> T:
            if not arguments.fit(*args, **kwargs):
                raise UsageError(arguments.wrong(args, kwargs).words)
            return function(*args, **kwargs)

        return door

    return decorate


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function or constructor that refuses arguments of a wrong type before it does anything.

    :raises UsageError: naming argument, value and rule; texts and bytes are named by their type alone.
    """
    return checked_but()(function)


def check_fields(record: Any, *names: str) -> None:
    """Refuse a record, of a dataclass, in which one of these fields is of a wrong type.

    :raises UsageError: naming field, value and rule.
    """
    kind: Any = type(record)
    rules = _fields(kind)
    for name in names:
        fits, rule = rules[name]
        value = getattr(record, name)
        if not fits(value):
            raise UsageError(_words(name, value, rule))


def check_integer(
    name: str, value: Any, least: int, most: int, rule: str = "", *, error: type[UsageError] = UsageError
) -> None:
    """Refuse what is not an integer of a range.

    :param rule: where the range comes from.
    :raises UsageError: or the error that is asked for, naming parameter, value and range.
    """
    if type(value) is not int:
        raise error(f"{name} is {value!r}: it must be an integer")
    if not least <= value <= most:
        raise error(f"{name} is {value}: it must be {least} to {most}{f' ({rule})' if rule else ''}")


def check_seconds(name: str, value: Any, *, least: float = 0.001, most: float = DAY_S) -> None:
    """Refuse what is no time in seconds.

    :raises UsageError: naming parameter, value and range.
    """
    # A value that is not a number is not within any bounds.
    if type(value) not in (int, float) or not least <= value <= most:
        bounds = f"{least:g} or more" if most == inf else f"{least:g} to {most:g}"
        raise UsageError(f"{name} is {value!r}: it must be a number of seconds, {bounds}")


def check_integers(record: Any, **ranges: tuple[int, int]) -> None:
    """Refuse a record with a field that is not an integer of its range; see :func:`check_integer`."""
    for name, (least, most) in ranges.items():
        check_integer(name, getattr(record, name), least, most)


def check_all_seconds(record: Any, *names: str, least: float = 0.001) -> None:
    """Refuse a record with a field that is no time in seconds; see :func:`check_seconds`."""
    for name in names:
        check_seconds(name, getattr(record, name), least=least)


def of_job(known: Mapping[str, T], job: str) -> T:
    """Return what belongs to a job.

    :raises UsageError: naming the jobs that there are.
    """
    if job not in known:
        raise UsageError(f"there is no job {job!r}: name one of {', '.join(known)}")
    return known[job]


def check_text(
    name: str, value: Any, *, most_bytes: int | None = None, most_characters: int | None = None, filled: bool = False
) -> None:
    """Refuse what is no text, or is too long.

    :param most_bytes: bound of its size in UTF-8; none without one.
    :param filled: refuse an empty text, too, and a zero character, which is no text to MQTT and PostgreSQL.
    :raises UsageError: naming parameter and rule.
    """
    if type(value) is not str:
        raise UsageError(f"{name} is {value!r}: it must be text")
    if filled and not value:
        raise UsageError(f"{name} is empty")
    if filled and "\0" in value:
        raise UsageError(f"{name} holds a zero character, which is no text to MQTT and PostgreSQL")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} holds half a character, {value[error.start]!a} at place {error.start + 1}: it was decoded wrongly"
        ) from None
    if most_bytes is not None and size > most_bytes:
        raise UsageError(f"{name} has {size} bytes: at most {most_bytes}")
    if most_characters is not None and len(value) > most_characters:
        raise UsageError(f"{name} has {len(value)} characters: at most {most_characters}")


def check_page(offset: int, limit: int, *, most: int) -> None:
    """Refuse what is no part of a list, or more of it than one call reads.

    :raises UsageError: naming parameter, value and rule.
    """
    check_integer("offset", offset, 0, 2**53 - 1)
    if type(limit) is not int or not 1 <= limit <= most:
        raise UsageError(f"limit is {limit!r}: it must be 1 to {most}; read longer queues page by page")


def check_instant(name: str, value: Any) -> None:
    """Refuse what is no instant: it takes a date, a time and a time zone.

    :raises UsageError: naming parameter, value and rule.
    """
    if not isinstance(value, datetime):
        raise UsageError(f"{name} is {shown(value)}: it must be a datetime with a time zone")
    if value.utcoffset() is None:
        raise UsageError(f"{name} is {value.isoformat()}: say in which time zone")


def check_choice(name: str, value: Any, choices: type[StrEnum]) -> None:
    """Refuse what is not one of a set of choices.

    :raises UsageError: naming parameter, value and choices.
    """
    if not isinstance(value, choices):
        raise UsageError(f"{name} is {value!r}: one of {', '.join(choices)}")


def shown(value: Any) -> str:
    """Return in words what is of a wrong type: of a text only that it is one, as it may be a payload."""
    if value is None or isinstance(value, bool | int | float | Enum):
        return repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else _article(type(value))


def _words(name: str, value: Any, rule: Any) -> str:
    return f"{name} {_fault(value, rule)}: it must be {_describe(rule)}"


def _fault(value: Any, rule: Any) -> str:
    """Return what is wrong with a value: its type, or that of its first element that does not belong there."""
    hints = get_args(rule) if get_origin(rule) in (Union, types.UnionType) else (rule,)
    for hint in hints:
        kind, inner = get_origin(hint), get_args(hint)
        is_many = isinstance(kind, type) and issubclass(kind, Sequence) and isinstance(value, kind)
        fits = _fitting(inner[0]) if is_many and inner and not isinstance(value, str | bytes) else None
        if fits is not None:
            for element in value:
                if not fits(element):
                    return f"holds {shown(element)}"
    return f"is {shown(value)}"


def _article(kind: type) -> str:
    return f"an {kind.__name__}" if kind.__name__[0] in "aeiouAEIOU" else f"a {kind.__name__}"


@cache
def _fields(kind: Any) -> dict[str, tuple[Fits, Any]]:
    found = {name: (_fitting(hint), hint) for name, hint in get_type_hints(kind).items()}
    return {name: (fits, hint) for name, (fits, hint) in found.items() if fits is not None}


def _fitting(hint: Any) -> Fits | None:
    """Return what tells whether a value is of a type; none for a type that anything may be of."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        parts = [_fitting(each) for each in inner]
        return None if None in parts else _any_of([part for part in parts if part is not None])
    if origin is Literal:
        return lambda value: any(type(value) is type(each) and value == each for each in inner)
    if hint is type(None):
        return lambda value: value is None
    if hint is bool:
        return lambda value: value is True or value is False
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    kind = origin or hint
    if kind is Callable:
        return callable
    if not isinstance(kind, type) or kind in (object, Any) or getattr(kind, "_is_protocol", False):
        return None
    if issubclass(kind, Iterable) and kind not in (str, bytes) and not issubclass(kind, Enum):
        return _of_many(kind, inner)
    return lambda value: isinstance(value, kind)


def _exact(hint: Any) -> type | None:
    """Return the one type whose very values fit, if a look at a value's class can tell."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return next((_exact(each) for each in inner if each is not type(None)), None)
    is_plain = isinstance(hint, type) and (hint in (str, bytes) or not issubclass(hint, Iterable))
    return hint if is_plain and _fitting(hint) is not None else None


def _any_of(parts: list[Fits]) -> Fits:
    return lambda value: any(part(value) for part in parts)


def _of_many(kind: type, inner: tuple[Any, ...]) -> Fits:
    """Return what tells whether a value is a collection whose every element is of its type."""
    # Asking an abstract class costs several times as much.
    known = frozenset(each for each in (list, tuple, dict, set, frozenset) if issubclass(each, kind))

    def is_kind(value: Any) -> bool:
        # A text is a sequence of texts to Python, and hardly ever meant as one.
        return type(value) in known or (
            isinstance(value, kind) and not isinstance(value, str | bytes | bytearray | memoryview)
        )

    if not issubclass(kind, Collection):
        return is_kind
    if issubclass(kind, Mapping):
        keys, values = (_fitting(each) for each in (inner or (Any, Any)))
        return lambda value: (
            is_kind(value)
            and (keys is None or all(map(keys, value)))
            and (values is None or all(map(values, value.values())))
        )
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        places = [_fitting(each) for each in inner]
        return lambda value: (
            is_kind(value)
            and len(value) == len(places)
            and all(place is None or place(each) for place, each in zip(places, value, strict=True))
        )
    one = _fitting(inner[0]) if inner else None
    if one is None:
        return is_kind
    # Elements of the very type are told apart without a call for each.
    exact = {_exact(inner[0])}
    return lambda value: is_kind(value) and ({*map(type, value)} == exact or all(map(one, value)))


_NAMES = {int: "an integer", float: "a number", str: "text", bytes: "bytes", bool: "True or False"}


def _describe(hint: Any) -> str:
    """Return a type in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        words = [_describe(each) for each in inner]
        return f"{', '.join(words[:-1])} or {words[-1]}"
    if origin is Literal:
        return " or ".join(repr(each) for each in inner)
    if hint is type(None):
        return "None"
    if hint in _NAMES:
        return _NAMES[hint]
    kind = origin or hint
    if kind is Callable:
        return "a function"
    if kind is type:
        return f"a class of {_plural(inner[0])}" if inner else "a class"
    if issubclass(kind, Enum):
        return " or ".join(str(each) for each in kind)
    if issubclass(kind, Mapping):
        return "a mapping of " + " to ".join(_plural(each) for each in inner) if inner else "a mapping"
    if issubclass(kind, Iterable):
        name = {Sequence: "a list or tuple", Iterable: "an iterable"}.get(kind, _article(kind))
        return f"{name} of {_plural(inner[0])}" if inner else name
    return _article(kind)


def _plural(hint: Any) -> str:
    if get_origin(hint) is type:
        return f"classes of {_plural(get_args(hint)[0])}"
    return {int: "integers", float: "numbers", str: "texts", bytes: "bytes"}.get(hint) or (
        f"{hint.__name__}s" if isinstance(hint, type) else _describe(hint)
    )
