"""Fan-out queues in Redis: a message is stored once, and every registered consumer works through all of them."""
