"""Files that migrate schema ``queuekeeper``, without a server."""

from __future__ import annotations

import pytest

from queuekeeper import schema_migrations

pytestmark = pytest.mark.unit


def test_migrations_are_numbered_without_gaps() -> None:
    found = schema_migrations.migrations()

    assert [migration.version for migration in found] == list(range(1, len(found) + 1))
    assert len({migration.checksum for migration in found}) == len(found) > 0
