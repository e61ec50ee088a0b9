"""Arguments of operators, each declared once: what the file of a DAG gives, and parameters that its form asks for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.definitions.xcom_arg import PlainXComArg
from airflow.sdk.exceptions import XComNotFound
from jinja2 import UndefinedError

from queuekeeper.airflow.forms import template, templates
from queuekeeper.airflow.supervised import SupervisedOperator
from queuekeeper.airflow.waits import count_tasks
from queuekeeper.errors import UsageError
from queuekeeper.jobs.parameters import Parameters, describe, unknown

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

Asked = TypeVar("Asked", bound=Parameters)

_PULLED_FROM = re.compile(r"""xcom_pull\((?:task_ids=)?["']([^"']+)""")


@dataclass(frozen=True)
class Argument:
    """An argument of an operator that the file of a DAG gives (templated).

    :param default: what the argument is when it is left out; without it, it has to be given.
    """

    default: Any = inspect.Parameter.empty

    def unsaid(self, _: str) -> Any:
        """Return what the argument is when it is left out."""
        return self.default


def argument(default: Any = inspect.Parameter.empty) -> Any:
    """Declare an argument as an attribute of the operator's class, see :class:`Argument`."""
    return Argument(default)


@dataclass(frozen=True)
class Ask:
    """An argument of an operator that a model declares and reads as a parameter (templated).

    :param model: model that declares the parameter.
    :param name: name of the parameter, if the argument has another name.
    :param default: value of the argument when it is left out; without a default, the value in the DAG's form.
    """

    model: type[Parameters]
    name: str = ""
    default: Any = None

    def unsaid(self, name: str) -> Any:
        """Return what the argument of a name is when it is left out."""
        return template(self.name or name) if self.default is None else self.default


class AsksOperator(SupervisedOperator):
    """Takes a templated argument for each :class:`Argument` and :class:`Ask` of its class and its base classes."""

    asks: ClassVar[Mapping[str, Argument | Ask]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.asks = {name: each for base in reversed(cls.__mro__) for name, each in _declared(base).items()}
        of_bases = [name for base in cls.__bases__ if issubclass(base, AsksOperator) for name in base.template_fields]
        cls.template_fields = tuple(dict.fromkeys((*cls.template_fields, *of_bases, *cls.asks)))
        if own := _declared(cls):
            cls.__init__ = _naming(own, cls)  # type: ignore[method-assign]

    def __init__(self, **kwargs: Any) -> None:
        asked = {name: kwargs.pop(name) for name in self.asks}
        self.check(asked)
        super().__init__(**kwargs)
        for name, value in asked.items():
            setattr(self, name, value)

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return what mapped tasks have in common, which is checked while the DAG is read, as for a single task."""
        cls.check(kwargs)
        return super().partial(**kwargs)

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Check arguments while the DAG is read, as far as they are given and no templates.

        :raises UsageError: when no task could carry them out.
        """

    def render_template(self, content: Any, context: Context, *more: Any, **others: Any) -> Any:
        """Return a rendered argument; what another task returns is ``None`` if that task has not succeeded.

        :raises UsageError: when that task has succeeded, and left nothing: a person has marked it as a success.
        """
        try:
            value = super().render_template(content, context, *more, **others)
        except UndefinedError as error:
            sources = _PULLED_FROM.findall(str(content))
            if not sources or "'None' has no" not in str(error):
                raise
            raise _left_nothing(*sources) from error
        except XComNotFound:
            value = None
        if value is None and isinstance(content, PlainXComArg) and not _is_answer(content):
            source, run_ids = content.operator, [context["dag_run"].run_id]
            index = None if source.get_closest_mapped_task_group() is None else context["ti"].map_index
            if count_tasks(context, source.task_id, states=["success"], run_ids=run_ids, map_index=index):
                raise _left_nothing(source.task_id)
        return value

    def read(self, model: type[Asked]) -> Asked:
        """Return the parameters of a model after Airflow has rendered them; the others have their defaults.

        :raises UsageError: when a value is refused.
        """
        return model.of_texts(self._said(model))

    def _said(self, model: type[Parameters]) -> dict[str, Any]:
        asks = {name: each for name, each in self.asks.items() if isinstance(each, Ask)}
        return {each.name or name: getattr(self, name) for name, each in asks.items() if each.model is model}


def is_fixed(value: Any) -> bool:
    """Return whether an argument is a text that stands in the file of the DAG, and no template."""
    return isinstance(value, str) and "{{" not in value


def _is_answer(content: PlainXComArg) -> bool:
    """Return whether this is the answer of a person: the task that acts on it records that there is none."""
    return isinstance(content.operator, HITLOperator) and content.key == BaseXCom.XCOM_RETURN_KEY


def _left_nothing(*task_ids: str) -> UsageError:
    named = ", ".join(map(repr, dict.fromkeys(task_ids)))
    return UsageError(
        f"task {named} has left nothing that this task could work on, as when a person marks a task as a success: "
        "clear it with its downstream tasks, so that it runs"
    )


def _declared(kind: type) -> dict[str, Argument | Ask]:
    return {name: each for name, each in vars(kind).items() if isinstance(each, Argument | Ask)}


def _naming(own: Mapping[str, Argument | Ask], kind: type) -> Callable[..., None]:
    """Return a class's constructor that names these, too.

    It tells Airflow what has to be given, and what ``default_args`` and mapped tasks may say.
    """
    make = vars(kind).get("__init__")
    unsaid = {name: each.unsaid(name) for name, each in own.items()}
    defaults = {name: value for name, value in unsaid.items() if value is not inspect.Parameter.empty}

    def __init__(self: Any, **kwargs: Any) -> None:  # noqa: N807 - of the class that asks
        if make is None:
            super(kind, self).__init__(**defaults | kwargs)  # type: ignore[arg-type]
        else:
            make(self, **defaults | kwargs)

    signature = inspect.signature(make or __init__)
    *others, more = signature.parameters.values()
    asked = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=unsaid[name]) for name in own]
    __init__.__signature__ = signature.replace(parameters=[*others, *asked, more])  # type: ignore[attr-defined]
    return __init__


class AskedOperator(AsksOperator):
    """Takes all parameters of its models.

    :param parameters: values by name, each as its model reads it from a text. Other parameters are taken from the DAG's
        form (templated).
    """

    template_fields: Sequence[str] = ("parameters",)
    models: tuple[type[Parameters], ...]

    def __init__(self, *, parameters: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self.check(kwargs | {"parameters": parameters})
        super().__init__(**kwargs)
        self.parameters: dict[str, Any] = {}
        for model in self.models:
            self.parameters |= templates(model)
        self.parameters |= parameters or {}

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Check the names of parameters."""
        super().check(given)
        models, named = cls.models_of(given), given.get("parameters")
        known = [name for model in models for name in describe(model)]
        if models and isinstance(named, Mapping) and (wrong := sorted(set(named) - set(known))):
            raise UsageError(unknown(wrong, known, owner=f"{cls.__name__} of this task"))

    @classmethod
    def models_of(cls, given: Mapping[str, Any]) -> tuple[type[Parameters], ...]:
        """Return the models of a task with these arguments; none if these do not tell."""
        return cls.models

    def _said(self, model: type[Parameters]) -> dict[str, Any]:
        named = {name: self.parameters[name] for name in describe(model) if name in self.parameters}
        return named | super()._said(model)
