"""Serves what all pages share: templates, headers, static files and error pages."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.exceptions import HTTPException as StarletteHTTPException

from queuekeeper.airflow.plugin.stores import TOO_SLOW, too_slow
from queuekeeper.airflow.run_index import PREFIX, base_path
from queuekeeper.clock import Clock, system_clock
from queuekeeper.errors import QueuekeeperError
from queuekeeper.report.figures import FILTERS, harmless, instant, seen
from queuekeeper.report.files import RUN_ID

_log = logging.getLogger(__name__)

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "link", "autolink"])

_PACKAGE = "queuekeeper.airflow.plugin"
_STATIC = {"pages.css": "text/css; charset=utf-8", "pages.js": "text/javascript; charset=utf-8"}

SECTIONS = (
    ("", "Overview"),
    ("migration", "Migration"),
    ("runs", "Runs"),
    ("queue", "One queue"),
    ("partitions", "Partitions"),
    ("quality", "Quality"),
    ("audit", "Audit"),
    ("reports", "Reports"),
)
"""Address and name of the parts of the site."""

PLAIN_HEADERS = {
    # Reports hold their own styles and pictures and no script: nothing else may run or be loaded.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}

_TITLES = {
    400: "This address does not make sense",
    401: "You are not signed in",
    403: "Forbidden: you may not do this",
    404: "There is nothing here",
    405: "This page cannot be used in this way",
    409: "This has changed in the meantime",
    422: "Something is missing in this request",
    500: "Something went wrong",
    503: "A store does not answer",
}
_ADVICE = {
    401: "Your sign-in to Airflow has expired, or there was none. Reload Airflow itself and sign in; then come back.",
    403: "Ask the administrator of Airflow for the permission, or ask a person who has it to do this.",
    500: "As far as is known, nothing was changed. The API server's log has the details.",
}


def check_id(noun: str, run_id: str) -> None:
    """Answer 404 to an address whose id cannot be that of a run or a plan.

    :param noun: ``run`` or ``plan``.
    """
    if not re.fullmatch(RUN_ID, run_id):
        raise HTTPException(404, f"A {noun}'s id has 16 digits from 0 to f: there is no such {noun}.")


class Site:
    """Renders pages.

    :param clock: returns the time at which a page is made.
    """

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self.clock = clock
        self._templates = Environment(
            loader=ChoiceLoader([PackageLoader(_PACKAGE, "templates"), PackageLoader("queuekeeper.report", ".")]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= FILTERS | {"markdown": markdown, "moment": moment}
        self._static = {name: (files(_PACKAGE) / "static" / name).read_bytes() for name in _STATIC}
        self._version = hashlib.sha256(b"".join(self._static.values())).hexdigest()[:12]

    @property
    def base(self) -> str:
        """Address of the site, without a slash at its end."""
        return f"{base_path()}{PREFIX}"

    def page(self, template: str, /, *, section: str = "", http_status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page.

        :param template: file name of the template.
        :param section: part of the site that the page belongs to.
        """
        nonce = secrets.token_urlsafe(16)
        text = self._templates.get_template(template).render(
            base=self.base,
            airflow=base_path(),
            nonce=nonce,
            version=self._version,
            sections=SECTIONS,
            section=section,
            now_ms=self.clock(),
            **values,
        )
        return HTMLResponse(text, status_code=http_status, headers=self.headers(nonce))

    @staticmethod
    def headers(nonce: str) -> dict[str, str]:
        """Return the headers of a page, which allow its own style sheet and script by their nonce, and nothing else."""
        return PLAIN_HEADERS | {
            "Content-Security-Policy": f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
            "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'",
            # Without any referrer the browser would not tell which page sends a form.
            "Referrer-Policy": "same-origin",
        }

    def static(self, name: str) -> Response:
        """Return a style sheet or a script.

        :raises HTTPException: when there is no such file (404).
        """
        if name not in self._static:
            raise HTTPException(404, "There is no such file.")
        headers = PLAIN_HEADERS | {"Cache-Control": "private, max-age=86400"}
        return Response(self._static[name], media_type=_STATIC[name], headers=headers)

    def explain_errors(self, app: FastAPI) -> None:
        """Answer errors with a page for browsers, and with JSON for programs."""

        async def refused(request: Request, error: Exception) -> Response:
            assert isinstance(error, StarletteHTTPException)
            return self._problem(request, error.status_code, str(error.detail))

        async def invalid(request: Request, error: Exception) -> Response:
            assert isinstance(error, RequestValidationError)
            names = ", ".join(sorted({str(each["loc"][-1]) for each in error.errors()}))
            return self._problem(request, 422, f"Missing or not valid: {names}.")

        async def ours(request: Request, error: Exception) -> Response:
            assert isinstance(error, QueuekeeperError)
            return self._problem(request, 503, str(error))

        async def unforeseen(request: Request, error: Exception) -> Response:
            _log.error("A page failed", exc_info=error)
            return self._problem(request, 500, "The page could not be made.")

        app.add_exception_handler(StarletteHTTPException, refused)
        app.add_exception_handler(RequestValidationError, invalid)

        async def slow(request: Request, error: Exception) -> Response:
            return self._problem(request, 503, too_slow(error))

        app.add_exception_handler(QueuekeeperError, ours)
        for kind in TOO_SLOW:
            app.add_exception_handler(kind, slow)
        app.add_exception_handler(Exception, unforeseen)

    def _problem(self, request: Request, status: int, detail: str) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"detail": detail}, status_code=status, headers=PLAIN_HEADERS)
        title = _TITLES.get(status, "This did not work")
        return self.page(
            "problem.html.j2",
            http_status=status,
            title=title,
            detail=detail,
            advice=_ADVICE.get(status, ""),
            code=status,
        )


def moment(value: datetime | int | None) -> Markup:
    """Return an instant in UTC; the page's script adds the reader's own time.

    :param value: milliseconds, or a datetime with a time zone.
    """
    if value is None:
        return Markup("–")
    at_ms = round(value.timestamp() * 1_000) if isinstance(value, datetime) else value
    try:
        machine = datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return Markup("{}").format(instant(at_ms))
    return Markup('<time datetime="{}">{}</time>').format(machine, instant(at_ms))


def markdown(text: str) -> Markup:
    """Return Markdown as HTML: paragraphs, lists and tables; HTML in it is shown as text."""
    blocks = _MARKDOWN.parse("\n".join(seen(line) for line in text.splitlines()))
    for block in blocks:
        # Only text that begins a line can look like a formula to a spreadsheet; marks of lists and tables cannot.
        begins = True
        for part in block.children or ():
            if part.content and begins:
                part.content, begins = harmless(part.content), False
            begins = begins or part.type in ("softbreak", "hardbreak")
    return Markup(_MARKDOWN.renderer.render(blocks, _MARKDOWN.options, {}))  # noqa: S704 - see html


def inline(text: str) -> Markup:
    """Return a sentence of Markdown as HTML, such as a command in backticks; HTML in it is shown as text."""
    return Markup(_MARKDOWN.renderInline(seen(text)))  # noqa: S704 - see html


def data(values: Mapping[str, Any]) -> Response:
    """Return values for the page's script."""
    text = json.dumps(values, ensure_ascii=False, default=str)
    return Response(text, media_type="application/json", headers=PLAIN_HEADERS)
