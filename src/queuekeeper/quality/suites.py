"""Loads expectation suites and runs them on PostgreSQL; what they demand stands in ``expectations/``.

Great Expectations is imported when a suite runs, not before: it takes seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queuekeeper import assets
from queuekeeper.errors import UsageError
from queuekeeper.postgres import connect
from queuekeeper.quality.checks import Severity

if TYPE_CHECKING:
    from great_expectations.core.batch_definition import BatchDefinition
    from great_expectations.datasource.fluent.postgres_datasource import PostgresDatasource
    from great_expectations.expectations.expectation import Expectation as GxExpectation

SHOWN_VALUES = 5
"""How many offending values a result shows: reports travel through Airflow's database."""

_TABLE = re.compile(r"[a-z_][a-z0-9_]*\.[a-z_][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One thing that must hold.

    :param type: its name in Great Expectations.
    :param description: what holds when it passes.
    """

    type: str
    kwargs: Mapping[str, Any]
    severity: Severity
    description: str


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Expectations on one table.

    :param identity: columns that name a row in a report.
    """

    name: str
    description: str
    identity: tuple[str, ...]
    expectations: tuple[Expectation, ...]


@dataclass(frozen=True, kw_only=True)
class ExpectationResult:
    """What became of one expectation.

    :param passed: whether it held; never true when the check is broken.
    :param broken: why the check could not be made (a missing column, say), else empty.
    :param observed: what was found for a check of the whole table, as text; else empty.
    :param unexpected_count: rows that break it.
    :param examples: identity and value of the first of them.
    """

    expectation: Expectation
    passed: bool
    broken: str = ""
    observed: str = ""
    unexpected_count: int = 0
    examples: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class SuiteReport:
    """What a suite found.

    :param subject: table or query that was checked.
    """

    suite: str
    subject: str
    results: tuple[ExpectationResult, ...]

    @property
    def failures(self) -> tuple[ExpectationResult, ...]:
        """Everything that did not pass, worst first."""
        failed = [result for result in self.results if not result.passed]
        return tuple(sorted(failed, key=lambda result: -result.expectation.severity.rank))

    @property
    def worst(self) -> Severity | None:
        """Highest severity that failed; a broken check counts as critical, since it proves nothing."""
        if any(result.broken for result in self.results):
            return Severity.CRITICAL
        return self.failures[0].expectation.severity if self.failures else None

    @property
    def passed(self) -> bool:
        """True unless something critical failed."""
        return self.worst is not Severity.CRITICAL


def names() -> list[str]:
    """Return the names of all suites."""
    return sorted(path.stem for path in assets.directory("expectations").glob("*.json"))


def load(name: str) -> Suite:
    """Read a suite from ``expectations/<name>.json``.

    :raises UsageError: when there is none, or it is not written as ``expectations/README.md`` says.
    """
    if name not in names():
        raise UsageError(f"there is no expectation suite {name!r}: one of {', '.join(names())}")
    return parse(assets.read("expectations", f"{name}.json"), name=name)


def parse(text: str, *, name: str) -> Suite:
    """Read a suite from the text of its file.

    :raises UsageError: naming the file, the check and what is wrong with it.
    """
    where = f"expectations/{name}.json"
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    fields = _fields(raw, where, {"name": str, "description": str, "identity": list, "expectations": list})
    if fields["name"] != name:
        raise UsageError(f"{where}: name is {fields['name']!r}, it must be {name!r} like the file")
    if not fields["expectations"]:
        raise UsageError(f"{where}: expectations is empty: such a suite would always pass")
    return Suite(
        name=name,
        description=fields["description"],
        identity=tuple(str(column) for column in fields["identity"]),
        expectations=tuple(
            _expectation(entry, f"{where}: expectation {number}")
            for number, entry in enumerate(fields["expectations"], start=1)
        ),
    )


def _expectation(raw: object, where: str) -> Expectation:
    fields = _fields(raw, where, {"type": str, "kwargs": dict, "severity": str, "description": str})
    try:
        severity = Severity(fields["severity"])
    except ValueError as error:
        raise UsageError(f"{where}: severity is {fields['severity']!r}: one of {', '.join(Severity)}") from error
    return Expectation(
        type=fields["type"], kwargs=fields["kwargs"], severity=severity, description=fields["description"]
    )


def _fields(raw: object, where: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return an object's fields, which must be these and of these kinds."""
    if not isinstance(raw, dict):
        raise UsageError(f"{where} is not an object")
    for name, kind in kinds.items():
        if not isinstance(raw.get(name), kind):
            raise UsageError(f"{where}: field {name!r} is missing or not a {kind.__name__}")
    strangers = sorted(set(raw) - set(kinds))
    if strangers:
        raise UsageError(f"{where}: unknown field {strangers[0]!r}")
    return raw


def validate(suite: Suite, *, postgres_url: str, table: str | None = None, query: str | None = None) -> SuiteReport:
    """Check data in PostgreSQL; nothing is written anywhere.

    :param table: ``schema.table``, all of whose rows are checked.
    :param query: a ``SELECT`` whose rows are checked, in place of a table. Its text is run as it is.
    :raises UsageError: when not exactly one of table and query is given, the table does not exist, or the suite names
        an expectation or an argument that Great Expectations does not know.
    """
    import great_expectations
    from great_expectations.data_context.types.base import ProgressBarsConfig

    if (table is None) == (query is None):
        raise UsageError("give either a table or a query to check")
    context = great_expectations.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    expectations = great_expectations.ExpectationSuite(
        name=suite.name, expectations=[_theirs(suite, number) for number in range(len(suite.expectations))]
    )
    _check_subject(postgres_url, table=table, query=query)
    source = context.data_sources.add_postgres("postgres", connection_string=_sqlalchemy_url(postgres_url, table=table))
    try:
        definition = great_expectations.ValidationDefinition(
            name=suite.name, data=_batch(source, table=table, query=query), suite=context.suites.add(expectations)
        )
        outcome = context.validation_definitions.add(definition).run(
            result_format={
                "result_format": "SUMMARY",
                "partial_unexpected_count": SHOWN_VALUES,
                "unexpected_index_column_names": list(suite.identity),
            }
        )
    finally:
        source.get_execution_engine().close()
        source.get_engine().dispose()
    # Results come back in an order of their own.
    raw: dict[str, Any] = outcome.to_json_dict()  # type: ignore[no-untyped-call]
    found = {result["expectation_config"]["meta"]["number"]: result for result in raw["results"]}
    return SuiteReport(
        suite=suite.name,
        subject=table or query or "",
        results=tuple(
            _result(expectation, found[number], suite.identity) for number, expectation in enumerate(suite.expectations)
        ),
    )


def _theirs(suite: Suite, number: int) -> GxExpectation:
    """Return Great Expectations' own object; a suite of theirs would drop what it does not understand."""
    from great_expectations.exceptions.exceptions import GreatExpectationsError
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.expectations.metadata_types import FailureSeverity

    ours = suite.expectations[number]
    try:
        return ExpectationConfiguration(
            type=ours.type,
            kwargs=dict(ours.kwargs),
            severity=FailureSeverity(ours.severity.value),
            description=ours.description,
            meta={"number": number},
        ).to_domain_obj()
    except (GreatExpectationsError, ValueError) as error:  # unknown expectation; pydantic's account of arguments
        raise UsageError(f"suite {suite.name}, expectation {number + 1}, {ours.type}: {error}") from error


def _check_subject(postgres_url: str, *, table: str | None, query: str | None) -> None:
    """Fail early and in plain words, before Great Expectations fails late and in its own."""
    with connect(postgres_url) as connection:
        if table is not None:
            if _TABLE.fullmatch(table) is None:
                raise UsageError(f"table {table!r}: write it as schema.table, in plain small letters")
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
            if found != (True,):
                raise UsageError(f"there is no table {table} in this database")
        elif re.match(r"\s*select\s", query or "", re.IGNORECASE) is None:
            raise UsageError("the query to check must begin with SELECT")


def _sqlalchemy_url(postgres_url: str, *, table: str | None) -> str:
    """Return the address for SQLAlchemy, with our driver, in UTC, read-only, the table's schema being the default."""
    from sqlalchemy.engine import make_url

    url = make_url(postgres_url).set(drivername="postgresql+psycopg")
    given = url.query.get("options", "")
    options = [
        given if isinstance(given, str) else " ".join(given),
        "-c timezone=UTC -c default_transaction_read_only=on",
    ]
    if table is not None:
        options.append(f"-c search_path={table.partition('.')[0]}")
    url = url.update_query_dict({"options": " ".join(options).strip()})
    # Great Expectations would take a $ for a variable of its own.
    return url.render_as_string(hide_password=False).replace("$", "%24")


def _batch(source: PostgresDatasource, *, table: str | None, query: str | None) -> BatchDefinition[Any]:
    if query is not None:
        return source.add_query_asset("query", query=query).add_batch_definition_whole_table("all")
    name = (table or "").partition(".")[2]
    return source.add_table_asset("table", table_name=name).add_batch_definition_whole_table("all")


def _result(expectation: Expectation, raw: Mapping[str, Any], identity: tuple[str, ...]) -> ExpectationResult:
    broken = _broken(raw.get("exception_info") or {})
    result = raw.get("result") or {}
    rows = result.get("partial_unexpected_index_list") or []
    shown = {*identity, *(value for key, value in expectation.kwargs.items() if key.startswith("column"))}
    return ExpectationResult(
        expectation=expectation,
        passed=bool(raw["success"]) and not broken,
        broken=broken,
        observed=str(result["observed_value"]) if "observed_value" in result else "",
        unexpected_count=int(result.get("unexpected_count") or 0),
        examples=tuple({key: value for key, value in row.items() if key in shown} for row in rows[:SHOWN_VALUES]),
    )


def _broken(info: Mapping[str, Any]) -> str:
    """Return the first line of what went wrong inside a check; it comes bare, or once per metric."""
    accounts = [info] if "raised_exception" in info else list(info.values())
    for account in accounts:
        if account.get("raised_exception"):
            return str(account.get("exception_message") or "unknown").strip().splitlines()[0]
    return ""
