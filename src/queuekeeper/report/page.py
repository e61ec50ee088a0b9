"""Fills the page of a report: a frame that all share, and a template of each report's own package."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template

from queuekeeper import __version__
from queuekeeper.report.figures import FILTERS
from queuekeeper.report.files import ReportFiles, ReportKind, write_files

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


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """A report that a DAG writes at the end of a run, as JSON and as one page that is filled with it.

    :cvar kind: how its files are named.
    :cvar package: that has the template of its page.
    :param run_name: DAG and run, as Airflow names them.
    :param dry_run: nothing was to be changed.
    """

    kind: ClassVar[ReportKind]
    package: ClassVar[str]

    run_name: str
    dry_run: bool
    generated_at_ms: int
    generated_by: str = f"queuekeeper {__version__}"
    format: int = 1

    @property
    def report_id(self) -> str:
        """Name of the report: one per run."""
        return sha256(self.run_name.encode()).hexdigest()[:16]

    def facts(self) -> dict[str, Any]:
        """Return what JSON says of it."""
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """Return what the page says besides."""
        return {}

    def write(self, directory: Path) -> ReportFiles:
        """Write both files; a reader sees a whole file or none.

        :param directory: made when it is not there.
        :raises RefusedError: when it cannot be written to.
        """
        return write_files(
            directory,
            kind=self.kind,
            subject_id=self.report_id,
            at_ms=self.generated_at_ms,
            text=json.dumps(self.facts(), ensure_ascii=False, indent=1),
            page=lambda name, digest: render_page(
                self.package, report=self, json_name=name, json_sha256=digest, **self.shown()
            ),
        )


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
