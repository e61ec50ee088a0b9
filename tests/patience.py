"""How long tests wait for a condition before they call it a hang; it limits no step of the product."""

PATIENCE_S = 600.0
"""A machine that is busy with other work takes ten times as long as one that is not: that changes no verdict."""
