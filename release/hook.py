"""What hatchling calls when it builds a wheel: the list of parts goes into it."""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.utils import get_reproducible_timestamp


class PartsHook(BuildHookInterface[Any]):
    """Adds the document to a wheel, not to an editable installation."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the document where hatchling fetches it."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)  # hatchling runs this file by itself
        from release.parts import parts

        self._folder = tempfile.TemporaryDirectory()
        document = Path(self._folder.name) / "queuekeeper.cdx.json"
        document.write_text(
            parts(Path(self.root), at=datetime.fromtimestamp(get_reproducible_timestamp(), UTC)), "utf-8"
        )
        build_data["sbom_files"].append(str(document))
