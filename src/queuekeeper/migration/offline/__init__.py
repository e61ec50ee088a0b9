"""Reads the source once, copies it, and proves the copy: with Spark, while no broker writes."""
