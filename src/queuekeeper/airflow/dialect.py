"""Has Airflow refuse wrong values of parameters in the words of commands and operators.

The schema of each field of a form names a dialect of JSON schema as its ``$schema``. It has all of 2020-12, but its
errors say the rule that the schema states as ``errorMessage``; its keyword ``check`` carries out the check that a
parameter declares; ``1000.0``, also written ``1e3``, is no integer; and what no database takes, such as half a
surrogate pair, is no text, as for operators and commands. A process knows the dialect once it has imported this module:
those that read DAGs, their tasks, and each that loads the plugin, such as the API server. Elsewhere JSON schema refuses
the same bounds in its own words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import create

from queuekeeper.errors import UsageError
from queuekeeper.jobs.parameters import TEXT_RULE, Kind, describe, refusal, too_many
from queuekeeper.wording import is_text

DIALECT = "urn:queuekeeper:parameters"

CHECKED: Mapping[str, str] = MappingProxyType(
    {
        "canary_steps_percent": "queuekeeper.migration.ledger.parameters:OnlineWish",
        "cohorts": "queuekeeper.migration.ledger.parameters:CohortChoice",
        "queues": "queuekeeper.maintenance.fanout.model:FanoutRepairParameters",
        "rdb_as_of": "queuekeeper.quality.profile.model:SnapshotWish",
    }
)
"""Parameters that have a ``check``, each with a model that declares it, which is imported when a value is checked."""


def _check(_: Any, name: str, instance: object, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str):
        try:
            describe(resolve_name(CHECKED[name]))[name].check_text(instance)
        except UsageError as error:
            yield ValidationError(str(error))


def _sentence(keyword: str, instance: Any, schema: Mapping[str, Any]) -> str:
    name, _, rule = schema["errorMessage"].partition(": ")
    if keyword == "maxItems":
        return too_many(name, instance, most=schema[keyword])
    if isinstance(instance, str) and not is_text(instance) and "enum" not in schema:
        rule = TEXT_RULE
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return refusal(name, instance, kind=Kind(kinds[-1]), rule=rule)


def _in_our_words(keyword: str, errors_of: Any) -> Any:
    def errors(validator: Any, value: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
        for error in errors_of(validator, value, instance, schema) or ():
            # Errors below, of entries of a list, have said it.
            if "errorMessage" in schema and not error.path:
                error.message = _sentence(keyword, instance, schema)
            yield error

    return errors


def _is_string(_: object, value: object) -> bool:
    return isinstance(value, str) and is_text(value)


def _is_integer(_: object, value: object) -> bool:
    return type(value) is int


_STANDARD = str(Draft202012Validator.META_SCHEMA["$id"])

create(
    meta_schema={"$schema": _STANDARD, "$id": DIALECT, "$ref": _STANDARD},
    validators={
        keyword: _in_our_words(keyword, errors)
        for keyword, errors in {**Draft202012Validator.VALIDATORS, "check": _check}.items()
    },
    version="queuekeeper",
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many({"integer": _is_integer, "string": _is_string}),
)
