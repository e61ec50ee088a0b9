"""Cleans sessions of what has expired, while brokers use them."""
