"""``python -m queuekeeper.lua``."""

from queuekeeper.lua import main

raise SystemExit(main())
