"""Operators: each keeps its arguments unchanged, makes its hooks at run time, calls one function and returns counts."""
