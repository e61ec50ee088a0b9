"""Removes expired data from sessions while brokers use them."""
