"""Loads expectation suites."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from queuekeeper import assets
from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import Severity, Store, check
from queuekeeper.sessions.pages import LAYOUTS, Layout

OURS = "queuekeeper"
"""Field of ``meta`` that holds our own fields."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One expectation of a suite.

    :param number: its position in the suite, from 1.
    :param type: name of its type in Great Expectations.
    :param description: sentence that is true when the expectation passes.
    :param check: id of the check that it belongs to, see :mod:`queuekeeper.jobs.checks`; empty for none.
    :param needs_contents: whether it needs numbers that only a profile with contents has.
    :param layout: the only layout of sessions that it is about; none for all.
    :param worst_by: columns that tell how badly a row breaks the expectation: the higher their sum, the worse.
    """

    number: int
    type: str
    kwargs: Mapping[str, Any]
    severity: Severity
    description: str
    check: str = ""
    needs_contents: bool = False
    layout: Layout | None = None
    worst_by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Expectations on one table.

    :param identity: columns that identify a row in a report.
    :param rows: statement in ``sql/quality/`` that returns the rows to judge; empty if the caller names a table.
    :param stores: stores of which the suite needs a profile.
    """

    name: str
    description: str
    identity: tuple[str, ...]
    expectations: tuple[Expectation, ...]
    rows: str = ""
    stores: tuple[Store, ...] = ()

    @property
    def is_mended(self) -> bool:
        """Whether DAGs can repair what the suite finds; among sessions, they repair only those in Redis."""
        return self.stores != (Store.POSTGRES,)

    def without_contents(self) -> Suite:
        """Return the suite with only the expectations that need no contents of messages."""
        return replace(self, expectations=tuple(each for each in self.expectations if not each.needs_contents))

    def for_layouts(self, layouts: Collection[Layout]) -> Suite:
        """Return the suite without expectations that are only about layouts of which there are no sessions."""
        chosen = tuple(each for each in self.expectations if each.layout is None or each.layout in layouts)
        return replace(self, expectations=chosen)

    def senseless(self, layouts: Collection[Layout]) -> tuple[str, ...]:
        """Return, in words, which checks of the suite make no sense for sessions of some layouts, and why."""
        checks = [check(each) for each in dict.fromkeys(each.check for each in self.expectations if each.check)]
        return tuple(
            f"{each.id} makes no sense for {LAYOUTS[layout]}: {each.senseless[layout]}"
            for each in sorted(checks, key=lambda each: int(each.id[1:]))
            for layout in sorted(layouts)
            if layout in each.senseless
        )


def names() -> list[str]:
    """Return the names of all suites."""
    return sorted(path.stem for path in assets.directory("expectations").glob("*.json"))


def load(name: str) -> Suite:
    """Read a suite from ``expectations/<name>.json``.

    :raises UsageError: when the file does not exist, or is not written as ``expectations/README.md`` says.
    """
    if name not in names():
        raise UsageError(f"there is no expectation suite {name!r}: one of {', '.join(names())}")
    return parse(assets.read("expectations", f"{name}.json"), name=name)


def parse(text: str, *, name: str) -> Suite:
    """Read a suite in the format of Great Expectations, with our fields under ``meta``, ``queuekeeper``.

    :raises UsageError: when the suite is not valid; the message names the file, the expectation and the mistake.
    """
    where = f"expectations/{name}.json"
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    if isinstance(raw, dict) and "identity" in raw:
        raise UsageError(
            f"{where}: it is written as before release 0.1, 'identity' stands at its top: rewrite it as "
            "docs/upgrading.md says under 'Expectation suites'"
        )
    fields = _fields(
        raw,
        where,
        {"name": str, "expectations": list, "meta": dict, "notes": str},
        optional={"id": str, "suite_parameters": dict},
    )
    if fields["name"] != name:
        raise UsageError(f"{where}: name is {fields['name']!r}, it must be {name!r} like the file")
    if not fields["expectations"]:
        raise UsageError(f"{where}: expectations is empty: such a suite would always pass")
    if fields.get("suite_parameters"):
        raise UsageError(f"{where}: suite_parameters is not empty: nothing fills them in. Write the values themselves")
    ours = _ours(fields, where, {"identity": list}, optional={"rows": str, "stores": list})
    rows = ours.get("rows", "")
    if rows and not (assets.directory("sql") / "quality" / f"{rows}.sql").is_file():
        raise UsageError(f"{where}: rows is {rows!r}: there is no statement sql/quality/{rows}.sql")
    return Suite(
        name=name,
        description=fields["notes"],
        identity=tuple(str(column) for column in ours["identity"]),
        expectations=tuple(
            _expectation(entry, number, f"{where}: expectation {number}")
            for number, entry in enumerate(fields["expectations"], start=1)
        ),
        rows=rows,
        stores=tuple(_one_of(Store, store, where, "stores") for store in ours.get("stores", [])),
    )


def _expectation(raw: object, number: int, where: str) -> Expectation:
    fields = _fields(
        raw,
        where,
        {"type": str, "kwargs": dict, "severity": str, "description": str},
        optional={"meta": dict, "id": str, "notes": (str, list), "rendered_content": list, "expectation_context": dict},
    )
    severity = _one_of(Severity, fields["severity"], where, "severity")
    known = {"check": str, "title": str, "priority": str, "remedy": str, "needs_contents": bool}
    known |= {"layout": str, "worst_by": list}
    ours = _ours(fields, where, {}, optional=known)
    if "check" in ours:
        _check_words(ours, severity, where)
    return Expectation(
        number=number,
        type=fields["type"],
        kwargs=fields["kwargs"],
        severity=severity,
        description=fields["description"],
        check=ours.get("check", ""),
        needs_contents=ours.get("needs_contents", False),
        layout=_one_of(Layout, ours["layout"], where, "layout") if "layout" in ours else None,
        worst_by=tuple(str(column) for column in ours.get("worst_by", ())),
    )


def _check_words(ours: Mapping[str, Any], severity: Severity, where: str) -> None:
    """Refuse an expectation whose fields contradict the catalogue of checks."""
    try:
        known = check(ours["check"])
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    priority = known.priority_of(severity)
    if priority.severity is not severity:
        raise UsageError(f"{where}: {known.id} has no finding of severity {severity}")
    remedy = known.remedy_of(severity)
    words = {"title": known.title, "priority": str(priority), "remedy": "" if remedy is None else remedy.name}
    for field, word in words.items():
        if ours.get(field, word) != word:
            raise UsageError(f"{where}: {field} is {ours[field]!r}: of {known.id} it is {word!r}, or left out")


_Choice = TypeVar("_Choice", bound=StrEnum)


def _one_of(kind: type[_Choice], value: object, where: str, field: str) -> _Choice:
    try:
        return kind(str(value))
    except ValueError as error:
        raise UsageError(f"{where}: {field} is {value!r}: one of {', '.join(kind)}") from error


def _ours(
    fields: Mapping[str, Any], where: str, kinds: Mapping[str, type], *, optional: Mapping[str, type]
) -> dict[str, Any]:
    """Return our fields of ``meta``; fields of other programs are ignored."""
    return _fields(fields.get("meta", {}).get(OURS, {}), f"{where}, meta, {OURS}", kinds, optional=optional)


_Kinds = type | tuple[type, ...]


def _fields(raw: object, where: str, kinds: Mapping[str, _Kinds], *, optional: Mapping[str, _Kinds]) -> dict[str, Any]:
    """Check the names and types of an object's fields and return them; an optional field may be null."""
    if not isinstance(raw, dict):
        raise UsageError(f"{where} is not an object")
    given = {name: value for name, value in raw.items() if value is not None or name not in optional}
    for name, kind in {**kinds, **optional}.items():
        if not isinstance(given.get(name), kind) and (name in kinds or name in given):
            wanted = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
            raise UsageError(f"{where}: field {name!r} is missing or not a {wanted}")
    strangers = sorted(set(given) - {*kinds, *optional})
    if strangers:
        raise UsageError(f"{where}: unknown field {strangers[0]!r}")
    return given
