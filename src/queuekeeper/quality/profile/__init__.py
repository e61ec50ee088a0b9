"""Reads stores with Spark and writes a row per queue."""
