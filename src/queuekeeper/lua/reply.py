"""Reads what scripts answer into records whose fields have the names that the script's header gives them."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from queuekeeper.lua.header import Line, fail_at

Read = Callable[[Any], Any]
"""Takes an answer and returns it as a record."""

_SHAPE = re.compile(r"\{([^}]*)\}(?: .*)?")
_TEXT = re.compile(r'"([a-z_]+(?::[a-z_]+)*(?::\*[a-z_]+)?|[a-z_]+(?: [a-z_]+)*(?: \*[a-z_]+)?)"(?: .*)?')
_PART = re.compile(r'"([a-z_]+)"|(\*?)([a-z_]+)(?:\(([a-z_]+(?:, [a-z_]+)*)\))?')


class _Shape(NamedTuple):
    """What one entry of Returns says of a list.

    :ivar word: text that it begins with.
    :ivar head: names of its values, each with the columns of its rows when it is a list of rows itself.
    :ivar tail: name of what takes the rest; empty for none.
    :ivar columns: names of what a row of the rest holds; empty when the rest is no rows.
    """

    word: str
    head: tuple[tuple[str, tuple[str, ...]], ...]
    tail: str
    columns: tuple[str, ...]


def reader(script: str, entries: Sequence[tuple[str, Line]]) -> Read:
    """Return what reads the answers of a script.

    A list becomes a named tuple, and so does a text that is declared as several names; what is in a text stays bytes.
    The first field is ``word`` where some of the script's lists begin with one, and empty for those that do not. The
    list that is declared as ``{}`` becomes none, and all else stays as it is.

    :param entries: of the section Returns.
    :raises ScriptError: when a list is not written as ``lua/README.md`` says.
    """
    shapes = {
        shape.word: (shape, line) for text, line in entries if text.startswith("{") for shape in [_shape(text, line)]
    }
    empty = shapes.pop("{}", None)
    has_words = any(shapes)
    reads = {word.encode(): _record(script, shape, line, has_words) for word, (shape, line) in shapes.items()}
    of_list = _list_reader(reads, empty, has_words)
    for text, line in entries:
        if (found := _TEXT.fullmatch(text)) and re.search("[: ]", found[1]):
            return _text_reader(script, found[1], line, has_words, of_list)
    return of_list


def _list_reader(reads: dict[bytes, Read], empty: Any, has_words: bool) -> Read:
    if not reads:
        return _as_it_is
    plain = reads.get(b"")
    if not has_words and empty is None and plain is not None:
        return plain

    def read(reply: Any) -> Any:
        if type(reply) is not list or (not reply and empty is not None):
            return reply or None if type(reply) is list else reply
        first = reply[0] if reply else b""
        return reads.get(first if type(first) is bytes else b"", plain or _as_it_is)(reply)

    return read


def _as_it_is(reply: Any) -> Any:
    return reply


def _shape(text: str, line: Line) -> _Shape:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise fail_at(line, f"a list is written {{name, name, *rest}}, and then described, not {text!r}")
    if not match[1]:
        return _Shape("{}", (), "", ())
    word, head, tail, columns = "", [], "", ""
    for at, part in enumerate(re.split(r", (?![^(]*\))", match[1])):
        found = _PART.fullmatch(part)
        if found is None or tail or (found[1] and at):
            raise fail_at(
                line,
                f'{part!r} is no part of a list: a "word" comes first, then names, some of them as rows(name, name), '
                "then *rest or *rows(name, name)",
            )
        if found[1]:
            word = found[1]
        elif found[2]:
            tail, columns = found[3], found[4] or ""
        else:
            head.append((found[3], tuple(found[4].split(", ")) if found[4] else ()))
    return _Shape(word, tuple(head), tail, tuple(columns.split(", ")) if columns else ())


def _text_reader(script: str, text: str, line: Line, has_words: bool, of_other: Read) -> Read:
    """Return what makes a record of a text that is declared like this one, and reads all else in another way."""
    between = ":" if ":" in text else " "
    fields = text.replace("*", "").split(between)
    has_rest = "*" in text
    least = len(fields) - has_rest
    verb = script.rpartition("/")[2]
    named = ["word", *fields] if has_words else fields
    try:
        record: Any = namedtuple(f"{verb}_text", named)  # type: ignore[misc]
    except ValueError as error:
        raise fail_at(line, f"a reply cannot be read by these names: {error}") from None
    word = "'', " if has_words else ""
    heads = "".join(f"_{at}, " for at in range(least))
    code = [
        "def read(reply):",
        "    if type(reply) is not bytes:",
        "        return _of_other(reply)",
        f"    _parts = reply.split({between.encode()!r})",
        # Most replies have no rest.
        f"    if len(_parts) == {least}:",
        f"        {heads}= _parts",
        f"        return _new(_record, ({word}{heads}{'()' if has_rest else ''}))",
    ]
    if has_rest:
        code += [
            f"    if len(_parts) > {least}:",
            f"        {heads}*_rest = _parts",
            f"        return _new(_record, ({word}{heads}tuple(_rest)))",
        ]
    code.append("    raise _wrong(_parts)")
    space: dict[str, Any] = {
        "_new": tuple.__new__,
        "_record": record,
        "_of_other": of_other,
        "_wrong": lambda parts: _wrong_number(script, len(parts), fields),
    }
    return _compiled(script, code, space)


def _compiled(script: str, code: Sequence[str], space: dict[str, Any]) -> Read:
    exec(compile("\n".join(code), f"<reply of {script}>", "exec"), space)  # noqa: S102 - of names that the rule admits
    read: Read = space["read"]
    return read


def _wrong_number(script: str, count: int, fields: Sequence[str]) -> ValueError:
    return ValueError(f"{script} answered {count} values: its header names {', '.join(fields)}")


def _rows_of(row: Callable[[Any], Any], width: int, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return a list within a reply as rows."""
    return tuple(map(row, zip(*[iter(values)] * width, strict=True)))


def _record(script: str, shape: _Shape, line: Line, has_words: bool) -> Read:
    """Return what makes a record of a list with this shape."""
    fields = [
        *(["word"] if has_words else []),
        *(name for name, _ in shape.head),
        *([shape.tail] if shape.tail else []),
    ]
    verb = script.rpartition("/")[2]
    try:
        # The names are only known from the header.
        record: Any = namedtuple(f"{verb}_reply", fields)  # type: ignore[misc]
        row: Any = namedtuple(f"{verb}_{shape.tail}", shape.columns) if shape.columns else None
        within: Any = {name: namedtuple(f"{verb}_{name}", columns) for name, columns in shape.head if columns}
    except ValueError as error:
        raise fail_at(line, f"a reply cannot be read by these names: {error}") from None
    skipped, width = int(bool(shape.word)), max(1, len(shape.columns))
    least = skipped + len(shape.head)
    values = [repr(shape.word)] if has_words else []
    values += [
        f"_rows_of(_{name}, {len(columns)}, reply[{skipped + at}])" if columns else f"reply[{skipped + at}]"
        for at, (name, columns) in enumerate(shape.head)
    ]
    wrong = f"len(reply) != {least}"
    if shape.columns:
        # Taken from one iterator, as this is what the hot paths read; strict=True would cost three times the rest.
        wrong = f"len(reply) < {least} or (len(reply) - {least}) % {width}"
        values.append(f"tuple(map(_row, zip({', '.join(['_rest'] * width)})))")
    elif shape.tail:
        wrong = f"len(reply) < {least}"
        values.append(f"tuple(reply[{least}:])")
    code = ["def read(reply):", f"    if {wrong}:", "        raise _wrong(reply)"]
    if shape.columns:
        code.append(f"    _rest = iter(reply[{least}:])" if least > 1 else "    _rest = iter(reply)")
        code += ["    next(_rest)"] * (least == 1)
    code.append(f"    return _new(_record, ({', '.join(values)},))")

    space: dict[str, Any] = {
        "_new": tuple.__new__,
        "_record": record,
        "_row": partial(tuple.__new__, row),
        "_wrong": lambda reply: _wrong_number(script, len(reply) - skipped, fields),
        "_rows_of": _rows_of,
    }
    space |= {f"_{name}": partial(tuple.__new__, kind) for name, kind in within.items()}
    return _compiled(script, code, space)
