"""Records that get their fields in one go are dataclasses in all that a caller sees."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from copy import copy
from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace
from typing import TypeAlias

import pytest

from queuekeeper.quick_init import quick_init


@dataclass(frozen=True, kw_only=True)
class Plain:
    name: str
    count: int = 3
    notes: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_seen: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"{self.name} counts {self.count}")


@quick_init
@dataclass(frozen=True, kw_only=True)
class Quick(Plain):
    """Has the same fields, inherited."""


@quick_init
@dataclass(frozen=True, kw_only=True, slots=True)
class Slotted:
    name: str
    count: int = 3
    notes: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"{self.name} counts {self.count}")


Kind: TypeAlias = type[Quick] | type[Slotted]
kinds = pytest.mark.parametrize("kind", [Quick, Slotted])


@kinds
def test_takes_the_arguments_that_dataclasses_writes(kind: Kind) -> None:
    assert inspect.signature(kind) == inspect.signature(Plain)
    with pytest.raises(TypeError, match="name"):
        kind()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="color"):
        kind(name="a", color="red")  # type: ignore[call-arg]


@kinds
def test_fields_left_out_have_their_defaults_and_a_value_of_their_own_from_a_factory(kind: Kind) -> None:
    first, second = kind(name="a"), kind(name="a")
    assert asdict(first) == {name: value for name, value in asdict(Plain(name="a")).items() if hasattr(first, name)}
    assert first.notes is not second.notes


@kinds
def test_is_checked_frozen_compared_shown_and_copied_as_a_dataclass_is(kind: Kind) -> None:
    record = kind(name="a", count=1, notes={"b": "c"})
    assert record == kind(name="a", count=1, notes={"b": "c"}) != replace(record, count=2)
    assert repr(record) == f"{kind.__name__}(name='a', count=1)"
    assert copy(record) == record
    with pytest.raises(FrozenInstanceError):
        record.count = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="a counts -1"):
        replace(record, count=-1)
