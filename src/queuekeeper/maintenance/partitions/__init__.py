"""Keeps range-partitioned tables of PostgreSQL ahead of their data, and retires what is old, with a way back."""
