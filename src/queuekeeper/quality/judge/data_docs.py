"""Writes Data Docs of Great Expectations as files that load no scripts, fonts or style sheets from other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from great_expectations.core.expectation_suite import ExpectationSuite
from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult
from great_expectations.render.renderer.page_renderer import ExpectationSuitePageRenderer, ValidationResultsPageRenderer
from great_expectations.render.view.view import DefaultJinjaPageView
from jinja2 import ChoiceLoader, DictLoader

from queuekeeper.errors import RefusedError
from queuekeeper.places import write_whole

SHOWN_VALUES = 20
"""Largest number of values that a page shows of those that break an expectation."""


def write_data_docs(directory: Path, *, suite: ExpectationSuite, result: ExpectationSuiteValidationResult) -> None:
    """Write the pages of a suite and of its result, and list them in ``index.html``.

    :param directory: folder, which is created if it is missing; pages of other suites stay.
    :raises RefusedError: when the folder cannot be written to.
    """
    found = ValidationResultsPageRenderer(run_info_at_end=True).render(_shortened(result))
    demanded = ExpectationSuitePageRenderer().render(suite)  # type: ignore[no-untyped-call]
    # On a site that Great Expectations builds, the two pages are in different folders.
    page = _page(found).replace(f"../../../../expectations/{suite.name}.html", f"{suite.name}.suite.html")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / f"{suite.name}.html", page.encode())
        write_whole(directory / f"{suite.name}.suite.html", _page(demanded).encode())
        names = sorted(path.name.removesuffix(".suite.html") for path in directory.glob("*.suite.html"))
        links = "".join(f'<li><a href="{escape(name)}.html">{escape(name)}</a></li>' for name in names)
        index = f'<!DOCTYPE html>\n<html lang="en"><title>Data Docs</title><h1>Data Docs</h1><ul>{links}</ul></html>\n'
        write_whole(directory / "index.html", index.encode())
    except OSError as error:
        raise RefusedError(
            f"Data Docs cannot be written to {directory}: {error.strerror}; name another folder or make room"
        ) from error


def _page(content: Any) -> str:
    view: Any = DefaultJinjaPageView()
    template = files("queuekeeper.quality.judge").joinpath("data_docs.html.j2").read_text("utf-8")
    # The page template of Great Expectations loads scripts and style sheets from five hosts.
    view.env.loader = ChoiceLoader([DictLoader({"page.j2": template}), view.env.loader])
    page: str = view.render(content)
    return page


def _shortened(result: ExpectationSuiteValidationResult) -> ExpectationSuiteValidationResult:
    """Return a copy with the first values of each list, and with one line of each exception inside a check."""
    short = deepcopy(result)
    for each in short.results:
        for field in ("partial_unexpected_list", "partial_unexpected_counts", "partial_unexpected_index_list"):
            if each.result.get(field):
                each.result[field] = each.result[field][:SHOWN_VALUES]
        # The tables of Great Expectations render values as markup.
        each.result = _escaped(each.result)
        for account in _accounts(each.exception_info or {}):
            # Messages of database drivers name web sites.
            account["exception_message"] = next(iter(str(account.get("exception_message") or "").splitlines()), "")
            account["exception_traceback"] = ""
    return short


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _escaped(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_escaped, value))
    return escape(value) if isinstance(value, str) else value


def _accounts(info: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "raised_exception" in info:
        yield info
    else:
        yield from info.values()
