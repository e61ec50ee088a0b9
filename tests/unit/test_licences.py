from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest

from release import licences

ALLOWED = frozenset({"MIT", "Apache-2.0", "GPL-2.0-only WITH Classpath-exception-2.0"})


def package(folder: Path, *lines: str, reader: Any = Distribution) -> Any:
    facts = folder / "sample-1.0.dist-info"
    facts.mkdir()
    facts.joinpath("METADATA").write_text("\n".join(["Metadata-Version: 2.4", "Name: sample", "Version: 1.0", *lines]))
    return reader.at(facts)


def test_every_locked_package_has_an_allowed_licence() -> None:
    assert licences.refused() == {}


def test_the_page_is_as_make_licences_writes_it() -> None:
    assert (licences.ROOT / licences.PAGE).read_text("utf-8") == licences.page()


@pytest.mark.parametrize(
    ("expression", "is_allowed"),
    [
        ("MIT", True),
        ("MIT AND Apache-2.0", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("Apache-2.0 AND (GPL-3.0-only OR MIT)", True),
        ("GPL-2.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", True),
        ("BSD License", False),
        (licences.UNKNOWN, False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_where_it_leaves_the_choice_of_an_allowed_one(expression: str, is_allowed: bool) -> None:
    assert licences.is_allowed(expression, ALLOWED) is is_allowed


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["License-Expression: MIT OR Apache-2.0"], "MIT OR Apache-2.0"),
        (["License: BSD-3-Clause", "Classifier: License :: OSI Approved :: BSD License"], "BSD-3-Clause"),
        (["License: the usual", "Classifier: License :: OSI Approved :: MIT License"], "MIT"),
        (["Classifier: License :: OSI Approved :: BSD License"], None),
        (["Classifier: License :: OSI Approved :: MIT License",
          "Classifier: License :: OSI Approved :: Apache Software License"], None),
        (["License: All rights reserved"], None),
        ([], None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("reader", [Distribution, importlib_metadata.Distribution])
def test_metadata_says_a_licence_only_without_doubt(
    tmp_path: Path, reader: Any, lines: list[str], said: str | None
) -> None:
    assert licences.declared(package(tmp_path, *lines, reader=reader)) == said
