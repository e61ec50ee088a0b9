"""Operators whose arguments are parameters of jobs: without a value they read the DAG's form by templates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from queuekeeper.airflow.forms import template, templates
from queuekeeper.airflow.supervised import SupervisedOperator
from queuekeeper.errors import UsageError
from queuekeeper.jobs.parameters import Parameters, describe, unknown

Asked = TypeVar("Asked", bound=Parameters)


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


class AsksOperator(SupervisedOperator):
    """Takes a templated argument for each :class:`Ask` of its class and its base classes."""

    asks: ClassVar[Mapping[str, Ask]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.asks = {
            name: each for base in reversed(cls.__mro__) for name, each in vars(base).items() if isinstance(each, Ask)
        }
        cls.template_fields = tuple(dict.fromkeys((*cls.template_fields, *cls.asks)))
        if own := [name for name, each in vars(cls).items() if isinstance(each, Ask)]:
            cls.__init__ = _naming(own, cls.__init__)  # type: ignore[method-assign]

    def __init__(self, **kwargs: Any) -> None:
        asked = {
            name: kwargs.pop(name, template(each.name or name) if each.default is None else each.default)
            for name, each in self.asks.items()
        }
        super().__init__(**kwargs)
        for name, value in asked.items():
            setattr(self, name, value)

    def read(self, model: type[Asked]) -> Asked:
        """Return the parameters of a model after Airflow has rendered them; the others have their defaults.

        :raises UsageError: when a value is refused.
        """
        return model.of_texts(self._said(model))

    def _said(self, model: type[Parameters]) -> dict[str, Any]:
        return {each.name or name: getattr(self, name) for name, each in self.asks.items() if each.model is model}


def _naming(names: Sequence[str], make: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor whose signature has these names, too, for ``default_args`` and mapped tasks."""

    def __init__(self: Any, **kwargs: Any) -> None:  # noqa: N807 - of the class that asks
        make(self, **kwargs)

    signature = inspect.signature(make)
    *others, more = signature.parameters.values()
    asked = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
    __init__.__signature__ = signature.replace(parameters=[*others, *asked, more])  # type: ignore[attr-defined]
    return __init__


class AskedOperator(AsksOperator):
    """Takes all parameters of its models.

    :param parameters: values by name, each as its model reads it from a text. Other parameters are taken from the DAG's
        form (templated).
    """

    template_fields: Collection[str] = ("parameters",)

    models: tuple[type[Parameters], ...]

    def __init__(self, *, parameters: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        given = dict(parameters or {})
        self.parameters: dict[str, Any] = {}
        for model in self.models:
            self.parameters |= templates(model)
        if wrong := sorted(set(given) - set(self.parameters)):
            raise UsageError(unknown(wrong, self.parameters, owner=f"{type(self).__name__} of this task"))
        self.parameters |= given

    def _said(self, model: type[Parameters]) -> dict[str, Any]:
        named = {name: self.parameters[name] for name in describe(model) if name in self.parameters}
        return named | super()._said(model)
