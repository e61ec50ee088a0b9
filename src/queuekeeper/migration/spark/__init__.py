"""How Spark is started, fed from PostgreSQL and ended."""
