"""What tasks have in common that cannot be undone: they only count, unless they are told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from queuekeeper.jobs.common import DryRun


class CountsFirstOperator(BaseOperator):
    """Only counts, as is the default.

    A subclass names in ``template_fields`` only what it adds: it has those of all its bases.

    :param dry_run: only count; a task that changes something has to say ``False`` (templated).
    """

    # BaseOperator has a method named dry_run, which must stay.
    template_fields: Sequence[str] = ("only_count",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited = (field for base in reversed(cls.__bases__) for field in getattr(base, "template_fields", ()))
        cls.template_fields = tuple(dict.fromkeys((*inherited, *vars(cls).get("template_fields", ()))))

    def __init__(self, *, dry_run: bool | str = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.only_count = dry_run

    @property
    def counts_only(self) -> bool:
        """Whether nothing is changed.

        :raises UsageError: when the task says neither.
        """
        return DryRun.of_texts({"dry_run": self.only_count}).dry_run

    def done(self, what: str) -> str:
        """Return what was done, or would be, for the log.

        :param what: such as ``removed``.
        """
        return f"would be {what}" if self.counts_only else what
