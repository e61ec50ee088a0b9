"""A parameter is declared once; whoever gives its value, a wrong one is refused by the same sentence."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any, Self

import pytest
import typer
from pydantic import model_validator
from typer.testing import CliRunner

from queuekeeper.cli.command import Plain, command
from queuekeeper.cli.context import CommandGroup
from queuekeeper.cli.options import takes
from queuekeeper.errors import InvalidPolicy, UsageError
from queuekeeper.jobs.control import rate_of
from queuekeeper.jobs.parameters import Parameters, Section, describe, digits_of, parameter
from queuekeeper.maintenance.partitions.keys import KeyKind, parse_span

pytestmark = pytest.mark.unit


class Order(StrEnum):
    OLDEST = "oldest"
    NEWEST = "newest"


def _refuse_tabs(name: str) -> None:
    if "\t" in name:
        raise UsageError(f"name {name!r} holds a tab")


class Renaming(Parameters):
    """What a made-up job is asked to do."""

    keys: tuple[str, ...] = parameter(
        (), title="Keys", help="Which keys.", noun="KEY", most=3, rule="it must be up to 3 keys without tabs",
        check=_refuse_tabs,
    )  # fmt: skip
    order: Order = parameter(Order.OLDEST, title="Order", help="Which first.")
    suffix: str = parameter("", title="Suffix", help="What is added.", pattern="^[a-z]+$", rule="it must be lower case")
    cap_percent: float = parameter(
        5.0,
        title="Cap (percent)",
        help="How many may fail.",
        least=0,
        most=100,
        aliases={"cap": lambda share: share * 100},
    )
    batch_size: int = parameter(100, title="Batch", help="How many.", least=1, most=1_000, section=Section.PACE)
    rate_per_s: int | None = parameter(50, title="Rate", help="How fast.", unset="no limit", least=1, most=9_000)
    overwrite: bool = parameter(False, title="Overwrite", help="Replace what is there.")

    @model_validator(mode="after")
    def _newest_goes_slowly(self) -> Self:
        if self.order is Order.NEWEST and self.rate_per_s is None:
            raise UsageError("order is 'newest' and rate_per_s is none: name a rate, or take the oldest first")
        return self


MISGROUPED = ("1,5", "1,,0", ",5,", "5,0", "1_5", "1,00", "1_000,000", "1,000_000", "1000,000", "0.1,000")
"""Texts that are no number: their separators are not between thousands."""

WRONG: list[tuple[dict[str, str], str]] = [
    ({"batch_size": "0"}, "batch_size is 0: it must be an integer from 1 to 1,000"),
    ({"batch_size": "1001"}, "batch_size is 1001: it must be an integer from 1 to 1,000"),
    ({"batch_size": "many"}, "batch_size is 'many': it must be an integer from 1 to 1,000"),
    ({"batch_size": ""}, "batch_size is '': it must be an integer from 1 to 1,000"),
    ({"rate_per_s": "0"}, "rate_per_s is 0: it must be an integer from 1 to 9,000, or none"),
    *(
        ({name: text}, f"{name} is {text!r}: it must be ")
        for name in ("batch_size", "rate_per_s", "cap_percent")
        for text in MISGROUPED
    ),
    ({"cap_percent": "100.5"}, "cap_percent is 100.5: it must be a number from 0 to 100"),
    ({"cap": "1.5"}, "cap_percent is 150: it must be a number from 0 to 100"),
    ({"order": "any"}, "order is 'any': it must be oldest or newest"),
    ({"suffix": "A1"}, "suffix is 'A1': it must be lower case"),
    ({"suffix": "a\n"}, r"suffix is 'a\n': it must be lower case"),
    ({"keys": "a\nb\nc\nd"}, "keys has 4 entries: at most 3 are allowed"),
    ({"keys": "a\tb"}, r"keys is 'a\tb': it must be up to 3 keys without tabs"),
    ({"keys": "a\nb\udcff"}, r"keys is 'b\udcff': it must be text in UTF-8, without a zero character"),
    ({"keys": "a\0"}, r"keys is 'a\x00': it must be text in UTF-8, without a zero character"),
    ({"batch_size": "9" * 5_000}, f"batch_size is '{'9' * 199}..: it must be an integer from 1 to 1,000"),
    ({"cap_percent": "9" * 5_000}, f"cap_percent is '{'9' * 199}..: it must be a number from 0 to 100"),
    ({"order": "newest", "rate_per_s": "none"}, "order is 'newest' and rate_per_s is none: name a rate, or"),
]  # fmt: skip


def _values(texts: dict[str, str]) -> dict[str, Any]:
    """Return the texts as somebody would write them who calls the library."""
    known = describe(Renaming)
    return {"cap": float(text)} if (text := texts.get("cap")) else {n: known[n].of_text(t) for n, t in texts.items()}


def _of_program(argv: list[str]) -> Renaming:
    """Return what a program of its own makes of its arguments."""
    parser = ArgumentParser()
    Renaming.declare(parser)
    return Renaming.take(vars(parser.parse_args(argv)))


def test_check_without_its_rule_in_words_is_no_declaration() -> None:
    with pytest.raises(ValueError, match="Keys has a check: say its rule in words"):
        parameter("", title="Keys", help="Which keys.", check=_refuse_tabs)


def test_field_without_a_declaration_is_named_to_whoever_writes_the_job() -> None:
    class Undeclared(Parameters):
        batch_size: int = 100

    with pytest.raises(TypeError, match=r"^Undeclared\.batch_size has no declaration: write `batch_size: ... = param"):
        describe(Undeclared)


@pytest.mark.parametrize(("texts", "words"), WRONG)
def test_library_texts_and_arguments_refuse_in_the_same_words(texts: dict[str, str], words: str) -> None:
    argv = [f"--{name.replace('_', '-')}={text}" for name, text in texts.items()]
    calls: list[Callable[[], Renaming]] = [
        lambda: Renaming(**_values(texts)),
        lambda: Renaming.of_texts(texts),
        lambda: _of_program(argv),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=f"^{re.escape(words)}"):
            call()


@pytest.mark.parametrize("value", [True, 1.0, "7", None, [1]])
def test_value_of_another_type_is_refused_and_never_turned_into_one(value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^batch_size is {re.escape(repr(value))}: it must be an integer from 1 to"):
        Renaming(batch_size=value)


@pytest.mark.parametrize("name", ["batch_size", "cap_percent"])
def test_number_that_nobody_could_read_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^{name} is a number of more than 30 digits: it must be"):
        Renaming.of_texts({name: 10**5_000})


def test_entry_of_a_list_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^keys is 'a\\nb': it must be up to 3 keys without tabs$"):
        Renaming(keys=("a\nb",))


def test_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"^unknown parameter 'batch' \(did you mean 'batch_size'\?\): this job has batch"
    ):
        Renaming.of_texts({"batch": "5"})


def test_old_name_still_means_what_it_meant_and_does_not_go_with_the_new_one() -> None:
    assert Renaming.of_texts({"cap": "0.25"}).cap_percent == 25.0
    with pytest.raises(UsageError, match="cap is the old name of cap_percent: name one of them"):
        Renaming.of_texts({"cap": "0.25", "cap_percent": "25"})


def test_record_of_parameters_is_read_back_as_it_was() -> None:
    wish = Renaming(keys=("a", "b"), order=Order.NEWEST, cap_percent=0.5, rate_per_s=9, overwrite=True)

    assert Renaming(**{**asdict(wish), "keys": ["a", "b"], "order": "newest"}) == wish
    assert _of_program(wish.to_argv()) == wish
    assert _of_program(replace(wish, order=Order.OLDEST, rate_per_s=None).to_argv()).rate_per_s is None
    assert replace(wish, batch_size=7).batch_size == 7
    with pytest.raises(Exception, match="frozen"):
        wish.batch_size = 8


@pytest.mark.parametrize("text", MISGROUPED)
def test_number_whose_separators_are_not_between_thousands_is_no_number(text: str) -> None:
    assert digits_of(text) == text
    with pytest.raises(UsageError, match=rf"^the rate is '{text}': write rows per second"):
        rate_of(text, "rows")
    with pytest.raises(InvalidPolicy, match=rf"^step is '{text}': write a number of keys"):
        parse_span(text, kind=KeyKind.INTEGER, what="step")


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("9" * 31, KeyKind.INTEGER, "write a number of keys"),
        ("9" * 5_000, KeyKind.INTEGER, "write a number of keys"),
        (f"{'9' * 31} days", KeyKind.TIME, "write a number and a unit"),
        (f"{'9' * 5_000} years", KeyKind.EVENT_ID, "write a number and a unit"),
    ],
    ids=["keys", "many keys", "time", "long time"],
)
def test_span_with_more_digits_than_a_number_may_have_is_refused(text: str, kind: KeyKind, words: str) -> None:
    with pytest.raises(InvalidPolicy, match=rf"^step is '9{{30,200}}.*: {words}") as refusal:
        parse_span(text, kind=kind, what="step")
    assert len(str(refusal.value)) < 400
    longest = "9" * 30 if kind is KeyKind.INTEGER else f"{'9' * 30} days"
    assert parse_span(longest, kind=kind, what="step").size >= 10**29


def test_separators_of_thousands_may_be_commas_or_underscores() -> None:
    assert (rate_of("2,500", "rows"), rate_of("1_000_000", "rows"), rate_of("none", "rows")) == (2_500, 1_000_000, None)
    assert [describe(Renaming)["batch_size"].of_text(text) for text in ("1,000", "-1_000", " 999 ")] == [
        1000,
        -1000,
        999,
    ]
    assert describe(Renaming)["cap_percent"].of_text("1,000.5") == 1_000.5
    assert parse_span("1,000,000", kind=KeyKind.INTEGER, what="step").size == 1_000_000


app = typer.Typer(cls=CommandGroup, rich_markup_mode=None)
seen: list[tuple[Parameters, bool]] = []


@app.callback()
def _root() -> None:
    """Stand for the command line."""


@command(app, asks=takes(lambda: Renaming, argument="keys", fixed={"overwrite": True}))
def rename(_: Plain, *, parameters: Renaming, loud: bool = False) -> None:
    """Rename keys."""
    seen.append((parameters, loud))


def test_command_asks_for_what_the_model_has_and_gets_it_checked() -> None:
    words = ["rename", "a", "b", "--order", "newest", "--rate-per-s", "1,000", "--cap", "0.25", "--loud"]
    assert CliRunner().invoke(app, words).exit_code == 0
    expected = Renaming(keys=("a", "b"), order=Order.NEWEST, rate_per_s=1_000, cap_percent=25.0, overwrite=True)
    assert seen.pop() == (expected, True)
    assert CliRunner().invoke(app, ["rename", "--rate-per-s", "none"]).exit_code == 0
    assert seen.pop() == (Renaming(rate_per_s=None, overwrite=True), False)


def test_help_of_a_command_has_bounds_and_defaults_of_the_model_and_no_old_names() -> None:
    text = " ".join(CliRunner().invoke(app, ["rename", "--help"]).stdout.split())
    for words in (
        "[KEY]...",
        "--batch-size INTEGER How many. Default: 100.",
        "--order oldest|newest",
        "none: no limit.",
    ):
        assert words in text, words
    assert "--overwrite" not in text
    assert "--cap " not in text


@pytest.mark.parametrize(("texts", "words"), [each for each in WRONG if "keys" not in each[0]])
def test_command_refuses_in_the_same_words(texts: dict[str, str], words: str) -> None:
    done = CliRunner().invoke(app, ["rename", *(f"--{n.replace('_', '-')}={text}" for n, text in texts.items())])
    assert done.exit_code == 2
    assert f"queuekeeper: {words}" in " ".join(done.stderr.split())
