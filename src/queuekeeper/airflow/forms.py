"""Makes forms of DAGs, and the templates by which operators read them, from the models of the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from queuekeeper.airflow.dialect import DIALECT
from queuekeeper.errors import UsageError
from queuekeeper.jobs.parameters import Described, Kind, Parameters, Section, describe, unknown

if TYPE_CHECKING:
    from airflow.sdk import Context


def form(*models: type[Parameters]) -> dict[str, Param]:
    """Return the form of a DAG: the parameters of these models by sections, what has to be filled in first.

    :raises ValueError: when two of the models declare the same parameter.
    """
    found: dict[str, Described] = {}
    for model in models:
        for name, each in describe(model).items():
            if name in found:
                raise ValueError(f"{name} is declared by two models of one form")
            found[name] = each
    order = list(Section)
    shown = sorted(found.values(), key=lambda each: (order.index(each.said.section), not each.said.needed))
    return {each.name: field_of(each) for each in shown}


def field_of(each: Described) -> Param:
    """Return one field of a form, whose schema states the rule in the same words as commands do.

    The field of a text or a list without a default is empty.
    """
    said = each.said
    default = each.default if said.proposed is None else said.proposed
    default = str(default.value) if each.enum is not None else default
    empty = said.proposed is None and default in ("", ()) and not each.optional and not said.needed
    optional = each.optional or empty
    schema: dict[str, Any] = {
        "$schema": DIALECT,
        "type": ["null", each.kind.value] if optional else each.kind.value,
        "title": said.title,
    }
    rule = f"{each.name}: {each.rule}"
    texts = {
        "pattern": said.form_pattern or said.pattern,
        "maxLength": said.longest,
        "check": each.name if said.check is not None else None,
    }
    if each.kind is Kind.LIST:
        items = {"errorMessage": rule, "type": "string", "minLength": None if said.pattern else said.shortest} | texts
        schema |= {"items": {name: value for name, value in items.items() if value is not None}, "maxItems": said.most}
        default = list(default)
    elif each.choices is not None:
        schema |= {"enum": list(each.choices)}
        if any(words != value for value, words in each.choices.items()):
            schema |= {"values_display": dict(each.choices)}
    else:
        schema |= {"minimum": said.least, "maximum": said.most, **texts}
    schema |= {
        "examples": list(said.examples) or None,
        "section": said.section.value or None,
        "errorMessage": rule,
    }
    words = said.help + (f" Empty: {said.unset}." if said.unset else "")
    # Airflow shows a description as it stands, and renders the other one where there is none.
    is_markdown = "`" in words
    schema |= {"description_md": words if is_markdown else None}
    return Param(
        None if empty else default,
        description=None if is_markdown else words,
        **{name: value for name, value in schema.items() if value is not None},
    )


def rule_of(name: str, schema: Mapping[str, Any]) -> str:
    """Return what a value must be, in the words of a refusal; empty where another's field does not say it.

    :param schema: schema of the field, as :func:`field_of` makes it.
    """
    return str(schema.get("errorMessage", "")).removeprefix(f"{name}: ")


def templates(model: type[Parameters]) -> dict[str, str]:
    """Return templates of all parameters of a model, rendered as :meth:`Parameters.of_texts` reads them."""
    return {
        name: f"{{{{ (params.{name} or []) | join('\\n') }}}}" if each.kind is Kind.LIST else template(name)
        for name, each in describe(model).items()
    }


def template(name: str) -> str:
    """Return the template of one parameter, of any type but a list; ``None`` is rendered as an empty text."""
    return f"{{{{ '' if params.{name} is none else params.{name} }}}}"


def reject_unknown(conf: Mapping[str, object] | None, known: Mapping[str, object]) -> None:
    """Refuse a run with parameters that the form does not have, which Airflow itself accepts.

    :param conf: parameters that the run was triggered with.
    :param known: the DAG's parameters.
    :raises UsageError: when a parameter is not known; the message names it and the nearest name that exists.
    """
    names = sorted(set(conf or {}) - set(known))
    if names:
        raise UsageError(unknown(names, known, owner="this DAG"))


def reject_unknown_of(context: Context) -> None:
    """Apply :func:`reject_unknown` to the run of a task's context."""
    run = context["dag_run"]
    reject_unknown(run.conf, context["dag"].params)
