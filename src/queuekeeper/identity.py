"""Names clients in reports by a keyed hash; whoever lacks the key cannot tell or guess whose queue a row is."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from queuekeeper.config import Settings
from queuekeeper.errors import UsageError

HASH_DIGITS = 16
"""Hex digits of a client's hash: 64 bits, so that millions of clients do not meet by chance."""

_LEAST_KEY_LENGTH = 16


def client_hash(client_id: str, *, key: bytes) -> str:
    """Return the name of a client in reports: HMAC-SHA256, cut to 16 hex digits.

    :param key: secret of the installation, see :func:`hash_key`.
    """
    return hmac.digest(key, client_id.encode("utf-8", "surrogatepass"), "sha256").hex()[:HASH_DIGITS]


def hash_key(settings: Settings) -> bytes:
    """Return the key for :func:`client_hash`: the setting's, else one that is made once and kept in ``home``.

    Another key gives every client another name, so that trends and links of earlier runs no longer meet.

    :raises UsageError: when the setting is too short to protect anything.
    """
    if settings.hash_key is not None:
        text = settings.hash_key.get_secret_value()
        if len(text) < _LEAST_KEY_LENGTH:
            raise UsageError(f"QUEUEKEEPER_HASH_KEY is too short: at least {_LEAST_KEY_LENGTH} characters")
    else:
        text = _kept(settings.home / "hash_key")
    return hashlib.sha256(text.encode()).digest()


def client_namer(settings: Settings) -> Callable[[str], str]:
    """Return what names a client in reports; the key is read, or made, when the first one is named."""

    @cache
    def key() -> bytes:
        return hash_key(settings)

    return lambda client_id: client_hash(client_id, key=key())


def _kept(path: Path) -> str:
    """Return the secret in a file; of several processes that make it at once, one wins."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path.read_text("utf-8").strip()
