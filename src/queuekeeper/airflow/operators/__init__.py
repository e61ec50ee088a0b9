"""Operators: each keeps its arguments as given, makes its hooks when it runs, calls one function and returns counts."""
