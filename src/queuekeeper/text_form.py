"""The text form of what users hold: which server it is of and what it works on, never a password or a content."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


def _told(fact: Callable[[Any], Any], of: Any) -> str:
    try:
        return repr(fact(of))
    except Exception as error:
        return f"<{type(error).__name__}>"


def shows(**facts: str | Callable[[Any], Any]) -> Callable[[type[T]], type[T]]:
    """Have the text form of a class's objects show some facts.

    It never fails, as logs and debuggers ask for it: in place of a fact that cannot be had stands the error's name.

    :param facts: where each is found: the path of an attribute, or what is called with the object.
    """
    found = {name: attrgetter(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}

    def text_form(self: Any) -> str:
        told = [f"{name}={_told(fact, self)}" for name, fact in found.items()]
        return f"<{' '.join([type(self).__name__, *told])}>"

    def decorate(kind: type[T]) -> type[T]:
        kind.__repr__ = text_form  # type: ignore[method-assign]
        return kind

    return decorate
