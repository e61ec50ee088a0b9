"""Shows forms of DAGs that a link fills in; Airflow 3.3 has no address that opens its own form with values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl

from airflow.sdk import Param
from fastapi import HTTPException, Request

from queuekeeper.airflow.forms import rule_of
from queuekeeper.airflow.plugin.site import inline
from queuekeeper.jobs.parameters import digits_of

_FIELDS = 1_000
_DIGITS = 20

_OF_TYPE = ("$schema", "type", "enum", "items", "errorMessage", "title")
"""Keywords of a field's schema that say what its input can show."""


class Kind(StrEnum):
    """Kind of input of a parameter."""

    CHOICE = "choice"
    FLAG = "flag"
    NUMBER = "number"
    TEXT = "text"
    LINES = "lines"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Field:
    """One parameter of a DAG.

    :param text: text of its value in the form.
    :param changed: whether the link gives it another value than its default.
    :param options: options of a choice: value as JSON, and words.
    :param section: section of the form that begins with it; empty if it belongs to the section before.
    """

    name: str
    title: str
    description: str
    kind: Kind
    text: str
    changed: bool
    nullable: bool
    minimum: float | None
    maximum: float | None
    options: tuple[tuple[str, str], ...]
    section: str


def fields(params: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> tuple[Field, ...]:
    """Return a form.

    :param params: a DAG's parameters as Airflow's REST API describes them.
    :param given: values to fill in; :func:`unknown` reports values without a parameter.
    """
    found, before = [], ""
    for name, param in params.items():
        section = param["schema"].get("section") or ""
        found.append(_field(name, param, given, section="" if section == before else section))
        before = section
    return tuple(found)


def unknown(params: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in a link that the form does not have."""
    return tuple(sorted(set(given) - set(params)))


def misfits(params: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the mistakes in a link: values that do not fit the type of their fields."""
    schemas = {name: param["schema"] for name, param in params.items() if name in given}
    problems = (
        _problem(name, {each: schema[each] for each in _OF_TYPE if each in schema}, given[name])
        for name, schema in schemas.items()
    )
    return tuple(filter(None, problems))


def read(params: Mapping[str, Mapping[str, Any]], form: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the values that a person has sent, and the mistakes in them, in the words of commands and operators.

    :param form: name of a field -> its text; a flag that is off is missing.
    """
    values: dict[str, Any] = {}
    problems = []
    for name, param in params.items():
        schema, text = param["schema"], form.get(name)
        unreadable = ""
        try:
            values[name] = _value(_kind(schema), text, nullable=_nullable(schema))
        except ValueError as error:
            # Keep the typed text in the form.
            values[name], unreadable = text, f"{schema.get('title') or name}: {error}"
        if rule_of(name, schema) or not unreadable:
            problems.append(_problem(name, schema, values[name]))
        else:
            problems.append(unreadable)
    return values, tuple(filter(None, problems))


def _problem(name: str, schema: Mapping[str, Any], value: Any) -> str:
    """Return why a field refuses a value, in the words of commands and operators; empty where it takes it."""
    try:
        Param(schema=schema).resolve(value)
    except ValueError as error:
        said = str(error).partition("\n")[0]
        rule = rule_of(name, schema)
        if not rule:
            return f"{schema.get('title') or name}: {said}"
        return f"{name} needs a value: {rule}" if value is None else said
    return ""


def read_json(text: str) -> Any:
    """Return the value of a JSON text.

    :raises ValueError: when it is not JSON, or could not be sent as JSON: ``NaN``, half a character, too deep lists.
    """
    try:
        found = json.loads(text)
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("the values are nested too deeply") from None
    return found


def read_whole_number(text: str, *, problem: str) -> int:
    """Return a number that a person has sent, for its reader to check.

    :param problem: answer (422) when the text is not a number, or is longer than any valid number.
    """
    # Python refuses to read thousands of digits.
    if not text.isdecimal() or len(text) > _DIGITS:
        raise HTTPException(422, problem)
    return int(text)


async def read_body(request: Request) -> dict[str, str]:
    """Return the fields of a form that a browser has sent.

    :raises HTTPException: when the body is not a form, is too long, or holds U+0000, which PostgreSQL refuses (400).
    """
    try:
        body = await request.body()
        sent = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS))
        if any("\0" in text for field in sent.items() for text in field):
            raise ValueError
        return sent
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None


def _field(name: str, param: Mapping[str, Any], given: Mapping[str, Any], *, section: str) -> Field:
    schema, default = param["schema"], param["value"]
    value = given.get(name, default)
    kind = _kind(schema)
    words = schema.get("values_display") or {}
    return Field(
        name=name,
        title=schema.get("title") or name,
        description=param.get("description") or inline(schema.get("description_md", "")),
        kind=kind,
        text=_text(kind, value),
        changed=value != default,
        nullable=_nullable(schema),
        minimum=schema.get("minimum"),
        maximum=schema.get("maximum"),
        options=tuple((json.dumps(option), str(words.get(str(option), option))) for option in schema.get("enum") or ()),
        section=section,
    )


def _types(schema: Mapping[str, Any]) -> Sequence[str]:
    declared = schema.get("type") or []
    return [declared] if isinstance(declared, str) else list(declared)


def _nullable(schema: Mapping[str, Any]) -> bool:
    return "null" in _types(schema)


def _kind(schema: Mapping[str, Any]) -> Kind:
    types = [each for each in _types(schema) if each != "null"]
    if schema.get("enum"):
        return Kind.CHOICE
    match types:
        case ["boolean"]:
            return Kind.FLAG
        case ["integer"] | ["number"]:
            return Kind.NUMBER
        case ["string"]:
            return Kind.TEXT
        case ["array"] if (schema.get("items") or {}).get("type") == "string":
            return Kind.LINES
    return Kind.JSON


def _text(kind: Kind, value: Any) -> str:
    if kind in (Kind.JSON, Kind.CHOICE, Kind.FLAG):
        return json.dumps(value)
    if value is None:
        return ""
    if kind is Kind.LINES:
        return "\n".join(value)
    return str(value)


def _value(kind: Kind, text: str | None, *, nullable: bool) -> Any:
    if kind is Kind.FLAG:
        return text is not None
    if kind is Kind.LINES:
        # As commands read them: what else Unicode calls a space or a line break belongs to a name.
        lines = [line for line in (text or "").replace("\r\n", "\n").split("\n") if line]
        return lines or (None if nullable else [])
    if kind is Kind.TEXT:
        return None if nullable and not text else (text or "")
    if not text:
        if nullable:
            return None
        raise ValueError("a value is needed")
    try:
        found = read_json(digits_of(text) if kind is Kind.NUMBER else text)
    except ValueError:
        raise ValueError("this is not a number" if kind is Kind.NUMBER else "this is not JSON") from None
    if kind is Kind.NUMBER and (isinstance(found, bool) or not isinstance(found, int | float)):
        raise ValueError("this is not a number")
    return found
