"""Plans, copies and verifies with Spark while no broker writes."""
