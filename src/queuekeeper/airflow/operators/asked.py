"""Operators that are asked something: they take a job's parameters from the form by templates made of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from airflow.sdk import BaseOperator

from queuekeeper.airflow.forms import templates
from queuekeeper.errors import UsageError
from queuekeeper.jobs.parameters import Parameters, describe, unknown

Asked = TypeVar("Asked", bound=Parameters)


class AskedOperator(BaseOperator):
    """Takes the parameters of its models.

    :param parameters: values by name, each as its model reads it from a text; what is not named is taken from the DAG's
        form (templated).
    """

    template_fields: Sequence[str] = ("parameters",)

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

    def asked(self, model: type[Asked]) -> Asked:
        """Return the parameters of a model, once Airflow has rendered them; what no form has, has its default.

        :raises UsageError: when a value is refused.
        """
        return model.of_texts({name: self.parameters[name] for name in describe(model) if name in self.parameters})
