"""One runtime for consumers: what they do is an operation, and this waits, starts handlers and ends for all of them."""
