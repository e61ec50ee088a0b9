"""Each parameter of a job is declared in one place, and every surface refuses the same values in the same words."""

from __future__ import annotations

import ast
import json
import re
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

import pytest
from airflow.sdk.exceptions import ParamValidationError
from typer.main import get_command

from queuekeeper.airflow.dialect import CHECKED
from queuekeeper.airflow.forms import field_of
from queuekeeper.airflow.plugin import forms
from queuekeeper.cli import app
from queuekeeper.cli.options import Taken
from queuekeeper.errors import UsageError
from queuekeeper.jobs.parameters import TEXT_RULE, Described, Kind, Parameters, describe
from tests.unit.test_command_options import commands

pytestmark = pytest.mark.dags

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
# These mean another thing in another job.
SEVERAL = {
    "mode": "of a migration, with devices connected or not, and of a profile, of all cohorts or of a turn of them",
}
OTHERS = {("quarantine", "limit"): "rows to list"}
"""Options of these modules that are no parameters of a job, though they have the name of one."""

DECLARATIONS = frozenset(
    {
        "parameter", "seconds", "minutes", "days", "percent", "_age", "_filter", "connection", "approval_minutes",
        "common.approval_minutes", "needed", "_folder",
    }
)  # fmt: skip
"""What declares the parameter to which a model assigns it."""

OPTIONS = {
    "dry_run": "of commands whose job is not led by a model, as all of them have it",
    "key_prefix": "of commands of stores; without it the settings say it",
    "layout": "of one session, as it is found in Redis",
    "lease_ms": "of messages that a worker of a fan-out queue has claimed",
    "limit": "how many are listed or taken",
    "mode": "of a consumer of a fan-out queue",
    "policy": "of a compacted queue's retention",
    "retention": "of a compacted queue",
    "store": "of a session",
    "directory": "of reports",
}
"""Options that commands declare themselves: they have the name of a parameter of a job and mean another thing."""

ALIKE = {
    ("incidents.py", "sample_percent"): "what a suite has looked at: all of it",
    ("status.py", "limit"): "differences to list",
}
"""Values of records and functions that happen to be the default of a parameter of this name."""

JOBS = ("cleanup", "compacted_gc", "migrate", "online", "partitions", "incidents", "quality", "repair")
"""Modules of commands that start jobs; names such as ``limit`` mean other things to the commands of the stores."""


def _models() -> list[type[Parameters]]:
    """Return every model of the package that declares parameters of jobs, wherever and however it is written."""
    classes = [
        (path, name, {*re.findall(r"\w+", bases)})
        for path in SOURCE.rglob("*.py")
        for name, bases in re.findall(r"^class (\w+)\((.*?)\):", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ]
    # To import all modules would take ten seconds in each process that collects tests.
    places, names, known = set[Path](), {"Parameters"}, 0
    while known < len(names):
        known = len(names)
        for path, name, bases in classes:
            if bases & names:
                names.add(name)
                places.add(path)
    for path in places:
        import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts))

    def below(model: type[Parameters]) -> Iterator[type[Parameters]]:
        for each in model.__subclasses__():
            yield each
            yield from below(each)

    ours = {each for each in below(Parameters) if each.__module__.startswith("queuekeeper.")}
    return sorted(ours, key=lambda each: each.__name__)


MODELS = _models()
PARAMETERS = sorted({name for model in MODELS for name in describe(model)})


def _trees(*folders: Path) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            yield path, ast.parse(path.read_text("utf-8"))


def _is_call(node: ast.AST | None, *names: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in names


def _declares(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in DECLARATIONS


def test_every_parameter_has_one_declaration() -> None:
    declared = defaultdict(list)
    for path, tree in _trees(SOURCE / "queuekeeper"):
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and _declares(node.value):
                declared[ast.unparse(node.target)].append(f"{path.name}:{node.lineno}")
            # What several jobs share is a function of the name of the parameter.
            if isinstance(node, ast.FunctionDef) and any(map(_declares, ast.walk(node))):
                declared[node.name.removeprefix("_")].append(f"{path.name}:{node.lineno}")
    several = {name: places for name, places in declared.items() if len(places) > 1 and name not in SEVERAL}

    assert several == {}
    assert set(PARAMETERS) - set(declared) == set(), "a declaration of a kind that is not looked for"
    assert len(PARAMETERS) > 50
    assert set(SEVERAL) <= set(PARAMETERS)


def test_no_form_has_a_parameter_of_its_own() -> None:
    own = [
        f"{path.name}: {ast.unparse(node)}"
        for path, tree in _trees(ROOT / "dags", SOURCE / "queuekeeper" / "airflow")
        for node in ast.walk(tree)
        if _is_call(node, "Param") and path.name != "forms.py"
    ]

    forms = [
        (path.name, ast.unparse(keyword.value))
        for path, tree in _trees(ROOT / "dags")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "params"
    ]

    assert own == []
    assert len(forms) == len(list((ROOT / "dags").glob("*.py")))
    assert [each for each in forms if not re.fullmatch(r"form\([\w, ]+\)", each[1])] == []


def test_no_operator_writes_the_arguments_of_a_spark_job_by_hand() -> None:
    own = [
        f"{path.name}: {node.name}"
        for path, tree in _trees(SOURCE / "queuekeeper" / "airflow" / "operators")
        for node in ast.walk(tree)
        if path.name != "spark.py"
        and isinstance(node, ast.ClassDef)
        and node.bases  # an operator has one
        and "arguments" in [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
    ]

    assert own == []


def test_no_operator_takes_a_number_or_a_flag_that_may_also_be_its_text() -> None:
    """Such an argument is read back by hand, where an ``Ask`` or a mapping is read by the model that declares it."""
    typed = {"int", "float", "bool"}
    own = [
        f"{path.name}:{node.lineno} {ast.unparse(node)}"
        for path, tree in _trees(SOURCE / "queuekeeper" / "airflow")
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.BitOr)
        and "str" in (parts := set(ast.unparse(node).split(" | ")))
        and parts & typed
    ]

    assert own == []


def test_every_argument_of_an_operator_says_its_type() -> None:
    arguments = [
        (f"{path.name} {ast.unparse(node.target)}", ast.unparse(node.annotation))
        for path, tree in _trees(SOURCE / "queuekeeper" / "airflow" / "operators")
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and _is_call(node.value, "argument")
    ]

    assert len(arguments) > 20
    assert [name for name, typed in arguments if typed == "Any"] == []


def test_no_operator_reads_a_text_back_by_hand() -> None:
    own = [
        f"{path.name}: {ast.unparse(node)}"
        for path, tree in _trees(SOURCE / "queuekeeper" / "airflow" / "operators")
        for node in ast.walk(tree)
        if (_is_call(node, "int", "float", "bool") and "self." in ast.unparse(node))
        or (isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) in ("'True'", "'False'"))
    ]

    assert own == []


def test_no_command_of_a_job_has_a_default_or_a_bound_of_its_own() -> None:
    assert {*JOBS} <= {path.stem for path, _ in _trees(SOURCE / "queuekeeper" / "cli")}
    own = []
    for path, tree in _trees(SOURCE / "queuekeeper" / "cli"):
        for node in ast.walk(tree):
            if path.stem not in JOBS or not isinstance(node, ast.FunctionDef):
                continue
            defaults = [None] * (len(node.args.args) - len(node.args.defaults)) + [*node.args.defaults]
            for argument, default in [
                *zip(node.args.args, defaults, strict=True),
                *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
            ]:
                bound = any(
                    _is_call(part, "Option", "Argument") and {"min", "max"} & {each.arg for each in part.keywords}  # type: ignore[attr-defined]
                    for part in ast.walk(argument)
                )
                typed = isinstance(default, ast.Constant) and default.value not in (None, False)
                if argument.arg in PARAMETERS and (bound or typed) and (node.name, argument.arg) not in OTHERS:
                    own.append(f"{path.name}:{argument.lineno} {argument.arg}")

    assert own == []


def test_no_command_of_a_job_measures_what_a_form_asks_for_in_a_unit_of_its_own() -> None:
    units = {"ms", "s", "seconds", "minutes", "hours", "days", "percent"}
    own = [
        f"{path.name}: {node.name} {argument.arg}"
        for path, tree in _trees(SOURCE / "queuekeeper" / "cli")
        for node in ast.walk(tree)
        if path.stem in JOBS
        and isinstance(node, ast.FunctionDef)
        and any(_is_call(each, "command") for each in node.decorator_list)
        for argument in [*node.args.args, *node.args.kwonlyargs]
        if argument.arg.split("_")[-1] in units
    ]

    assert own == []


def test_no_command_has_an_option_of_its_own_for_what_a_model_declares() -> None:
    every = [
        (f"{path} --{option.name}", option.name)
        for path, each in commands(get_command(app))
        for option in getattr(each, "_own", each.params)
        if option.param_type_name == "option" and option.name in PARAMETERS
    ]

    assert [words for words, name in every if name not in OPTIONS] == []
    assert {name for _, name in every} == set(OPTIONS)


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield what a statement gives a name by: values of fields and constants, defaults of functions."""
    if isinstance(node, ast.AnnAssign):
        yield ast.unparse(node.target), node.value
    elif isinstance(node, ast.Assign):
        yield from ((ast.unparse(each), node.value) for each in node.targets)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        # What several jobs share is a function of the name of the parameter.
        yield from ((node.name, each) for each in ast.walk(node) if _declares(each) and isinstance(each, ast.Call))
        given = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        yield from zip(given[len(given) - len(node.args.defaults) :], node.args.defaults, strict=True)
        yield from zip((each.arg for each in node.args.kwonlyargs), node.args.kw_defaults, strict=True)


def test_default_of_a_parameter_is_written_in_one_place() -> None:
    defaults = {(name, each.default) for model in MODELS for name, each in describe(model).items()}
    written = defaultdict(list)
    for path, tree in _trees(SOURCE / "queuekeeper", ROOT / "dags", ROOT / "spark_jobs"):
        for node in ast.walk(tree):
            for name, value in _named_values(node):
                literal = value.args[0] if _declares(value) and value.args else value  # type: ignore[union-attr]
                found = (re.sub(r"^_?(default_(?!ttl))?", "", name.lower()), getattr(literal, "value", None))
                if (
                    isinstance(found[1], int | float)
                    and found[1] > 1
                    and found in defaults
                    and (path.name, found[0]) not in ALIKE
                ):
                    written[found].append(f"{path.name}:{node.lineno}")  # type: ignore[attr-defined]
    several = {found: places for found, places in written.items() if len(places) > 1}

    assert several == {}
    assert len(written) > 20


def test_no_record_of_a_job_repeats_a_default() -> None:
    own = []
    for folder in ("maintenance", "migration", "quality", "jobs"):
        for path, tree in _trees(SOURCE / "queuekeeper" / folder):
            for node in ast.walk(tree):
                if not isinstance(node, ast.ClassDef) or "dataclass" not in str(
                    [*map(ast.unparse, node.decorator_list)]
                ):
                    continue
                repeated = [
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign)
                    and isinstance(each.target, ast.Name)
                    and each.target.id in PARAMETERS
                    and isinstance(each.value, ast.Constant)
                    and each.value.value not in (None, 0, "", False)
                ]
                # One or two are what a record of something else may happen to have.
                own += [f"{path.name}: {node.name} has {repeated}"] * (len(repeated) > 2)

    assert own == []


ONLY_CHECKED = {
    "canary_steps_percent": "10,5,100",
    "cohorts": "5-2",
    "queues": "or\x07ders",
    "rdb_as_of": "noon",
}
"""Texts that a parameter's pattern and bounds allow, and its check does not."""


def test_airflow_knows_the_check_of_every_parameter_that_has_one() -> None:
    checked = {name: each for model in MODELS for name, each in describe(model).items() if each.said.check is not None}

    assert set(CHECKED) == set(checked) == set(ONLY_CHECKED)
    for name, model in CHECKED.items():
        each = checked[name]
        assert describe(resolve_name(model))[name].said.check is each.said.check
        replace(each, said=replace(each.said, check=None)).check_text(ONLY_CHECKED[name])


def _others(model: type[Parameters], each: Described) -> dict[str, Any]:
    """Return examples of the other parameters that somebody has to say."""
    return {
        name: other.said.examples[0]
        for name, other in describe(model).items()
        if other.said.needed and other.said.examples and name != each.name
    }


def _wrong(each: Described) -> Iterator[tuple[str, Any]]:
    """Yield texts that a parameter refuses, each with the value that a form would send."""
    said = each.said
    if each.kind in {Kind.INTEGER, Kind.NUMBER}:
        yield "many", "many"
        turned: Callable[[float], Any] = int if each.kind is Kind.INTEGER else float
        if said.least is not None:
            yield str(turned(said.least - 1)), turned(said.least - 1)
        if said.most is not None:
            yield str(turned(said.most + 1)), turned(said.most + 1)
    elif each.kind is Kind.FLAG:
        yield "perhaps", "perhaps"
    elif each.choices is not None:
        yield "of another kind", "of another kind"
    elif each.kind is Kind.TEXT and said.pattern is not None:
        yield "{a b}", "{a b}"
    elif each.kind is Kind.LIST and said.pattern is not None:
        yield "{a b}", ["{a b}"]
    if said.check is not None:
        text = ONLY_CHECKED[each.name]
        yield text, [text] if each.kind is Kind.LIST else text
    if each.kind in {Kind.TEXT, Kind.LIST} and each.choices is None:
        yield "\ud800", ["\ud800"] if each.kind is Kind.LIST else "\ud800"
    texts = [letters * "x" for letters in (said.shortest - 1, (said.longest or -1) + 1) if letters > 0]
    if each.kind is Kind.LIST:
        yield from ((text, [text]) for text in texts if len(text) < said.shortest or said.longest is not None)
        if said.most is not None:
            many = [f"x{number:0{said.shortest}}" for number in range(int(said.most) + 1)]
            yield "\n".join(many), many
    elif each.kind is Kind.TEXT and each.choices is None and said.longest is not None:
        yield texts[-1], texts[-1]


CASES = [
    pytest.param(model, each, text, value, id=f"{model.__name__}-{each.name}-{text if len(text) < 30 else len(text)}")
    for model in MODELS
    for each in describe(model).values()
    for text, value in _wrong(each)
]


@pytest.mark.parametrize(("model", "each", "text", "value"), CASES)
def test_form_command_operator_program_and_library_refuse_in_the_same_words(
    model: type[Parameters], each: Described, text: str, value: Any
) -> None:
    parser = ArgumentParser()
    model.declare(parser)
    others = _others(model, each)
    argv = [f"--{name.replace('_', '-')}={value}" for name, value in {**others, each.name: text}.items()]
    taken = Taken(model=lambda: model, argument="", fixed={}, only=(), names=MappingProxyType({}))
    surfaces: dict[str, Callable[[], Any]] = {
        "library": lambda: model(**{**others, each.name: value}),
        "operator": lambda: model.of_texts({**others, each.name: text}),
        "program": lambda: model.take(vars(parser.parse_args(argv))),
        "command": lambda: taken.read({**others, each.name: text}),
    }
    words = {}
    for surface, ask in surfaces.items():
        with pytest.raises(UsageError) as refused:
            ask()
        words[surface] = str(refused.value)

    assert len(set(words.values())) == 1, words
    with pytest.raises(ParamValidationError) as by_form:
        field_of(each).resolve(value)
    # Airflow shows the schema below it.
    assert str(by_form.value).partition("\n")[0] == words["library"]
    # A page's form can send no other flag, and shows a list that is too long.
    sent = json.dumps(value) if each.choices is not None else text
    _, by_page = forms.read({each.name: {"schema": field_of(each).schema}}, {each.name: sent})
    assert each.kind is Kind.FLAG or by_page == (words["library"],)
    assert words["library"].endswith((each.rule, TEXT_RULE, "are allowed"))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_value_of_a_wrong_type_is_refused_in_one_sentence_for_every_parameter(model: type[Parameters]) -> None:
    for each in describe(model).values():
        for value in ({"a": 1}, object(), b"bytes", 1j):
            with pytest.raises(UsageError) as refused:
                model(**{each.name: value})
            assert str(refused.value) == f"{each.name} is {value!r}: {each.rule}"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_form_takes_no_integer_that_its_task_would_refuse(model: type[Parameters]) -> None:
    for each in describe(model).values():
        if each.kind is Kind.INTEGER:
            value = float(each.said.least or 0)
            with pytest.raises(UsageError):
                model.of_texts({each.name: str(value)})
            with pytest.raises(ParamValidationError, match=f"{each.name} is {value}: {each.rule}"):
                field_of(each).resolve(value)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_defaults_and_examples_are_allowed_by_form_and_model(model: type[Parameters]) -> None:
    for each in describe(model).values():
        assert each.said.title
        assert each.said.help.endswith((".", ")"))
        field = field_of(each)
        if not each.said.needed:
            field.resolve()
            assert getattr(model(**_others(model, each)), each.name) == each.default
        for example in each.said.examples:
            field.resolve(example)


HOSTILE: tuple[Any, ...] = (
    *(
        "9" * 5_000,
        "-0",
        "\u0663",
        "1e400",
        "nan",
        "inf",
        "\x00",
        "a\nb",
        " 5 ",
        "0x10",
        "1,,0",
        "\ud800",
        "x" * 100_000,
    ),
    *(True, 1.0, 10**400, float("nan"), float("inf"), None, [], ["a\nb"], ["a", ""], {"a": 1}),
)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_any_value_of_any_parameter_is_taken_or_refused_in_words(model: type[Parameters]) -> None:
    for name in describe(model):
        for value in HOSTILE:
            with suppress(UsageError):
                taken = model.of_texts({name: value})
                parser = ArgumentParser()
                model.declare(parser)
                assert model.take(vars(parser.parse_args(taken.to_argv()))) == taken, (name, value)
