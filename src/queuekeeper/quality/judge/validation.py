"""Runs expectation suites on PostgreSQL or Spark.

Great Expectations is imported when a suite runs, not before: it takes seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import Severity
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.postgres import connect, server_words
from queuekeeper.quality.judge.suites import Expectation, Suite
from queuekeeper.report.figures import percent

if TYPE_CHECKING:
    from great_expectations.core.batch_definition import BatchDefinition
    from great_expectations.data_context.data_context.ephemeral_data_context import EphemeralDataContext
    from great_expectations.datasource.fluent.postgres_datasource import PostgresDatasource
    from great_expectations.expectations.expectation import Expectation as GxExpectation
    from pyspark.sql import DataFrame

SHOWN_VALUES = 5
"""Largest number of offending values in a result; it is small, because reports are stored in Airflow's database."""

COMPARED_VALUES = 1_000
"""Largest number of offending rows that are fetched, to show the worst of them."""

CLIENT_ID = "client_id"
"""Column that is shown only on request."""

_TABLE = re.compile(r"[a-z_][a-z0-9_]*\.[a-z_][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class SuiteReport:
    """Result of a suite.

    :param subject: table, query or kind of frame that was checked.
    :param results: result of each expectation, in the suite's order.
    """

    suite: str
    subject: str
    results: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Results that did not pass, worst first."""
        failed = [result for result in self.results if not result.passed]
        return tuple(sorted(failed, key=lambda result: -result.severity.rank))

    @property
    def worst(self) -> Severity | None:
        """Highest severity that failed; a broken check counts as critical, since it proves nothing."""
        if any(result.broken for result in self.results):
            return Severity.CRITICAL
        return self.failures[0].severity if self.failures else None

    @property
    def passed(self) -> bool:
        """Whether no critical expectation failed and none was broken."""
        return self.worst is not Severity.CRITICAL


def check_expectations(suite: Suite) -> None:
    """Check that Great Expectations knows every expectation of a suite and its arguments.

    :raises UsageError: when it does not know one of them.
    """
    _all_theirs(suite)


def validate(
    suite: Suite,
    *,
    postgres_url: str | None = None,
    table: str | None = None,
    query: str | None = None,
    frame: DataFrame | None = None,
    show_client_ids: bool = False,
    shown: int = SHOWN_VALUES,
    data_docs: Path | None = None,
) -> SuiteReport:
    """Check data in PostgreSQL or in Spark by a checkpoint; only Data Docs are written, and only on request.

    :param table: ``schema.table``, all of whose rows are checked.
    :param query: a ``SELECT`` whose rows are checked, in place of a table. Its text is run unchanged.
    :param frame: rows in Spark, in place of PostgreSQL.
    :param show_client_ids: show client ids in examples, not only their hashes.
    :param shown: number of offending rows in a result: the worst of the first :data:`COMPARED_VALUES` or more.
    :param data_docs: folder for Great Expectations' pages of suite and result; ``None`` writes none.
    :raises UsageError: when not exactly one of table, query and frame is given, the table does not exist, a column of
        the suite's identity is missing, or Great Expectations does not know an expectation or one of its arguments.
    """
    if [table, query, frame].count(None) != 2 or (frame is None) != (postgres_url is not None):
        raise UsageError("give either a table or a query to check")
    expectations = _all_theirs(suite)
    identity = (*suite.identity, *([CLIENT_ID] if show_client_ids and "client_hash" in suite.identity else []))
    result_format = {
        "result_format": "SUMMARY",
        "partial_unexpected_count": max(shown, COMPARED_VALUES),
        "unexpected_index_column_names": list(identity),
    }
    if frame is not None:
        _check_identity(identity, frame.columns)
        context = _quiet_context()
        batch = context.data_sources.add_spark("spark", persist=False).add_dataframe_asset("frame")
        raw = _run(
            context,
            suite.name,
            expectations,
            batch.add_batch_definition_whole_dataframe("all"),
            result_format,
            parameters={"dataframe": frame},
            data_docs=data_docs,
        )
    else:
        url = postgres_url or ""
        _check_identity(identity, _columns(url, table=table, query=query))
        context = _quiet_context()
        source = context.data_sources.add_postgres("postgres", connection_string=_sqlalchemy_url(url, table=table))
        try:
            subject = _batch(source, table=table, query=query)
            raw = _run(context, suite.name, expectations, subject, result_format, data_docs=data_docs)
        finally:
            source.get_execution_engine().close()
            source.get_engine().dispose()
    # Great Expectations returns results in another order.
    found = {result["expectation_config"]["meta"]["number"]: result for result in raw["results"]}
    return SuiteReport(
        suite=suite.name,
        subject=table or query or "a frame in Spark",
        results=tuple(
            _result(suite, expectation, found[expectation.number], identity=identity, shown=shown)
            for expectation in suite.expectations
        ),
    )


def _quiet_context() -> EphemeralDataContext:
    """Return a context that writes no files, sends no analytics and shows no progress bars."""
    # Great Expectations reads this when it is imported and when a context is made.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = great_expectations.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context


def _run(
    context: EphemeralDataContext,
    name: str,
    expectations: list[GxExpectation],
    batch: BatchDefinition[Any],
    result_format: Mapping[str, Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    data_docs: Path | None,
) -> dict[str, Any]:
    import great_expectations as gx

    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=expectations))
    definition = gx.ValidationDefinition(name=name, data=batch, suite=suite)
    checkpoint = gx.Checkpoint(
        name=name,
        validation_definitions=[context.validation_definitions.add(definition)],
        result_format=dict(result_format),
    )
    outcome = context.checkpoints.add(checkpoint).run(batch_parameters=dict(parameters or {}) or None)
    (result,) = outcome.run_results.values()
    if data_docs is not None:
        from queuekeeper.quality.judge.data_docs import write_data_docs  # noqa: PLC0415 - takes seconds

        write_data_docs(data_docs, suite=suite, result=result)
    raw: dict[str, Any] = result.to_json_dict()  # type: ignore[no-untyped-call]
    return raw


def _all_theirs(suite: Suite) -> list[GxExpectation]:
    return [_theirs(suite, each) for each in suite.expectations]


def _theirs(suite: Suite, ours: Expectation) -> GxExpectation:
    """Return an expectation as an object of Great Expectations, whose own loader would drop unknown fields."""
    from great_expectations.exceptions.exceptions import GreatExpectationsError
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.expectations.metadata_types import FailureSeverity

    import queuekeeper.quality.judge.expectations  # noqa: F401, PLC0415 - registers our expectation

    try:
        return ExpectationConfiguration(
            type=ours.type,
            kwargs=dict(ours.kwargs),
            severity=FailureSeverity(ours.severity.value),
            description=ours.description,
            meta={"number": ours.number},
        ).to_domain_obj()
    except (GreatExpectationsError, ValueError) as error:  # an unknown expectation, or arguments that pydantic refuses
        raise UsageError(f"suite {suite.name}, expectation {ours.number}, {ours.type}: {error}") from error


def _columns(postgres_url: str, *, table: str | None, query: str | None) -> list[str]:
    """Return the columns of the table or query; refuse a wrong one early, before Great Expectations starts."""
    with connect(postgres_url) as connection:
        connection.read_only = True
        if table is not None:
            if _TABLE.fullmatch(table) is None:
                raise UsageError(
                    f"table {table!r} is not a name: write schema.table in lower-case letters, digits and underscores"
                )
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
            if found != (True,):
                raise UsageError(f"there is no table {table} in this database")
            query = f"SELECT * FROM {table}"  # noqa: S608 - the pattern and the catalog have checked the name
        elif re.match(r"\s*(select|with)\s", query or "", re.IGNORECASE) is None:
            raise UsageError("the query to check must begin with SELECT")
        try:
            empty = connection.execute(f"SELECT * FROM ({query}) AS subject LIMIT 0".encode())  # noqa: S608 - likewise
        except psycopg.ProgrammingError as error:
            raise UsageError(f"the query to check does not run: {server_words(error)}") from error
        return [column.name for column in empty.description or ()]


def _check_identity(identity: Sequence[str], columns: Sequence[str]) -> None:
    missing = [column for column in identity if column not in columns]
    if missing:
        raise UsageError(f"the rows to check have no column {missing[0]!r}, which identifies them")


def _sqlalchemy_url(postgres_url: str, *, table: str | None) -> str:
    """Return the address for SQLAlchemy: with our driver, read-only, in UTC, and with the table's schema as default."""
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
    # Great Expectations would read a $ as the start of a variable.
    return url.render_as_string(hide_password=False).replace("$", "%24")


def _batch(source: PostgresDatasource, *, table: str | None, query: str | None) -> BatchDefinition[Any]:
    if query is not None:
        # Great Expectations refuses a query that begins with WITH.
        query = f"SELECT * FROM ({query}) AS subject"  # noqa: S608 - the caller's own text
        return source.add_query_asset("query", query=query).add_batch_definition_whole_table("all")
    name = (table or "").partition(".")[2]
    return source.add_table_asset("table", table_name=name).add_batch_definition_whole_table("all")


def _faults(expectation: Expectation) -> tuple[str, ...]:
    """Return the columns that tell how badly a row breaks an expectation: the higher their sum, the worse."""
    name = expectation.kwargs.get("column") or expectation.kwargs.get("column_B")
    return expectation.worst_by or ((name,) if name else ())


def _result(
    suite: Suite, expectation: Expectation, raw: Mapping[str, Any], *, identity: Sequence[str], shown: int
) -> Finding:
    faults = _faults(expectation)
    broken = _broken(raw.get("exception_info") or {})
    result = raw.get("result") or {}
    # With only a least value, smaller values are worse.
    sign = -1 if {"min_value", "max_value"} & expectation.kwargs.keys() == {"min_value"} else 1

    def badness(row: Mapping[str, Any]) -> tuple[Any, ...]:
        values = [row.get(name) for name in faults]
        # Equally bad rows keep the same order in each run: numbers by value, then texts.
        names = [row.get(name) for name in identity]
        return -sign * sum(value for value in values if isinstance(value, int | float)), [
            (0, name, "") if isinstance(name, int | float) else (1, 0, str(name)) for name in names
        ]

    rows = sorted(result.get("partial_unexpected_index_list") or [], key=badness)
    return Finding(
        suite=suite.name,
        expectation=expectation.number,
        check_id=expectation.check,
        severity=expectation.severity,
        status=Status.BROKEN if broken else Status.PASSED if raw["success"] else Status.FAILED,
        description=expectation.description,
        observed=broken or _observed(result),
        unexpected_count=int(result.get("unexpected_count") or 0),
        examples=tuple(rows[:shown]),
    )


def _observed(result: Mapping[str, Any]) -> str:
    if "observed_value" in result:
        return str(result["observed_value"])
    if "element_count" not in result:
        return ""
    count, total = int(result.get("unexpected_count") or 0), int(result["element_count"])
    share = f" ({percent(count / total)})" if count and total else ""
    return f"{count:,} of {total:,}{share}"


def _broken(info: Mapping[str, Any]) -> str:
    """Return the first line of an exception inside a check; there is one account of it, or one per metric."""
    accounts = [info] if "raised_exception" in info else list(info.values())
    for account in accounts:
        if account.get("raised_exception"):
            return str(account.get("exception_message") or "unknown").strip().splitlines()[0]
    return ""
