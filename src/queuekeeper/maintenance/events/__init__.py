"""Upkeep of the event broker, its remedies, and the figures that both use."""
