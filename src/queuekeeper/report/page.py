"""Fills the page of a report: a frame that all share, and a template of each report's own package."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template

from queuekeeper.report.figures import FILTERS

TEMPLATE = "report.html.j2"


def render_page(
    package: str, *, report: Any, json_name: str, json_sha256: str, template: str = TEMPLATE, **values: Any
) -> str:
    """Return the page; whatever it is filled with is escaped.

    :param package: that holds the template, such as ``queuekeeper.migration``.
    :param json_name: file name of the JSON report beside the page.
    :param json_sha256: hash of that file, which the page states.
    :param template: its file name, where the package has several.
    :param values: further values that the template names.
    """
    return _template(package, template).render(report=report, json_name=json_name, json_sha256=json_sha256, **values)


@cache
def _template(package: str, name: str) -> Template:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("queuekeeper.report", ".")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= FILTERS
    return environment.get_template(name)
