"""Words in sentences: one message, two messages; and which texts can be stored."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter
from typing import Any

_NAMED = 10
_VOWELS = "aeiou"


def is_text(text: str) -> bool:
    """Return whether a text can be stored as one: PostgreSQL takes neither half a surrogate pair nor a zero character.

    What is typed and is not UTF-8 comes as halves of surrogate pairs.
    """
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def plural(noun: str) -> str:
    """Return a noun, or the last of some words, in the plural."""
    if noun.endswith("y") and noun[-2] not in _VOWELS:
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"


def article(noun: str) -> str:
    """Return a noun with its article, for example ``an upkeep``."""
    return f"{'an' if noun[:1] in _VOWELS else 'a'} {noun}"


def number_of(count: int, noun: str) -> str:
    """Return a count and what it counts, for example ``1 entry`` or ``2,000 entries``.

    :param noun: in the singular; words before it stay as they are.
    """
    return f"1 {noun}" if count == 1 else f"{count:,} {plural(noun)}"


def no_such(noun: str, name: str, *, newest: Sequence[str], makes: str) -> str:
    """Return the refusal of a record that does not exist, with the names of the newest ones.

    :param newest: names of those that exist, the newest first.
    :param makes: what to do where there is none.
    """
    are = "is" if len(newest) == 1 else "are"
    known = f"the newest {are} {', '.join(newest)}" if newest else f"there is none yet in this database; {makes}"
    return f"there is no {noun} {name!r}: {known}"


class _Sentence(Formatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if type(value) is int and format_spec.replace(" ", "").isalpha() and len(format_spec) > 1:
            return number_of(value, format_spec)
        return super().format_field(value, format_spec)


def sentence(template: str, **facts: Any) -> str:
    """Return a sentence with its facts filled in; ``{found:wrong key}`` is a count and what it counts.

    :raises KeyError: when the template names a fact that is not given.
    """
    return _Sentence().vformat(template, (), facts)


def named(names: Sequence[str]) -> str:
    """Return names as text: the first ten, and the number of the others."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
