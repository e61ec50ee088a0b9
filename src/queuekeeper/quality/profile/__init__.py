"""Profiles stores with Spark: reads them and writes a row per queue."""
