"""Tells which hosts of addresses there can be and which are this machine alone, and what of an address is shown."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit, urlunsplit


def is_loopback(host: str) -> bool:
    """Return whether a host is reached from this machine only: a loopback address, ``localhost`` or a socket's path."""
    if not host or host.startswith(("/", "@")) or host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_host(host: str) -> None:
    """Refuse a host that no name service can be asked for; the text may be part of a password.

    :raises ValueError: saying what is wrong.
    """
    try:
        wrong = b"\0" in host.encode("idna")
    except UnicodeError:
        wrong = True
    if wrong:
        raise ValueError("its host is no name of a host, whose parts between dots have 1 to 63 characters")


_LONG = 6
"""Characters of a secret that is no part of a word by chance."""


_VALUE = re.compile(r"(?i)((?:password|secret)\s*=\s*)('(?:\\.|[^'\\])*'?|(?:\\.|[^\s\\])+)")
"""A password among names with values, as libpq reads them: in quotes, or with backslashes before what ends it."""


def without_secret(text: str, secret: str) -> str:
    """Return words of a server or a library without a secret.

    A short one that is part of a longer word stays: the password ``b`` makes no other word of ``available``.
    """
    if not secret:
        return text
    found = re.escape(secret)
    return re.sub(found if len(secret) >= _LONG else rf"(?<!\w){found}(?!\w)", "***", text)


def without_password(url: str) -> str:
    """Return an address that may be shown; of PostgreSQL it may be no URL, but names with values."""
    if "://" not in url:
        return _VALUE.sub(r"\1***", url)
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url.partition('://')[0]}://***"
    place = parts.netloc.rpartition("@")
    user = place[0].partition(":")[0]
    shown = f"{user}@{place[2]}" if user else place[2]
    # Clients also accept the password as a parameter.
    query = re.sub(r"(?i)(^|&)([^=&]*(?:password|secret)[^=&]*)=[^&]*", r"\1\2=***", parts.query)
    return urlunsplit(parts._replace(netloc=shown, query=query))
