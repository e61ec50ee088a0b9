"""The page of reference, which `make reference` builds from docstrings, says what each public name of a store is."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pdoc import pdoc, render

pytestmark = pytest.mark.unit

STORES = ("sessions", "compacted", "fanout", "events")


def public_members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, member in inspect.getmembers(kind, callable):
        if not name.startswith("_") and (getattr(member, "__module__", None) or "").startswith("queuekeeper."):
            yield name, member


@pytest.mark.parametrize("store", STORES)
def test_every_public_name_is_described_and_no_signature_shows_how_it_is_made(store: str) -> None:
    package = importlib.import_module(f"queuekeeper.{store}")
    for name in package.__all__:
        public = getattr(package, name)
        if not isinstance(public, type):
            continue
        assert public.__doc__, name
        for member_name, member in public_members(public):
            assert inspect.getdoc(member), f"{name}.{member_name}"
            returned = str(inspect.signature(member).return_annotation)
            assert not returned.startswith("Operation["), f"{name}.{member_name}"


def test_page_shows_calls_with_their_results_and_parameters(tmp_path: Path) -> None:
    render.configure(docformat="restructuredtext", show_source=False, search=False)
    pdoc("queuekeeper.fanout", output_directory=tmp_path)
    page = (tmp_path / "queuekeeper" / "fanout.html").read_text("utf-8")
    assert 'id="FanoutQueues.publish"' in page
    assert "<strong>acked</strong>:  messages that this consumer is done with" in page
    assert "Operation[" not in page
