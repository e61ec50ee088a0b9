"""The command ``queuekeeper``, also as ``python -m queuekeeper``: without its extra it says how to install it."""

from __future__ import annotations

import sys

from queuekeeper.errors import MissingExtra


def main() -> None:
    """Run the command line."""
    try:
        from queuekeeper.cli import main as run  # noqa: PLC0415 - what it needs may not be installed
    except MissingExtra as missing:
        sys.stderr.write(f"queuekeeper: {missing}\n")
        sys.exit(missing.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
