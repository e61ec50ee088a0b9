"""``python -m queuekeeper.demo``: the demo without the command line."""

from __future__ import annotations

import sys

from queuekeeper.demo.installed import demand_installed
from queuekeeper.errors import MissingExtra

try:
    demand_installed()
except MissingExtra as missing:
    sys.exit(str(missing))

from queuekeeper.demo.program import main

if __name__ == "__main__":
    sys.exit(main())
