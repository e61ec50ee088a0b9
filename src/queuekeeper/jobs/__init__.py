"""Plans, approves, runs, watches, takes back and reports work that changes data, once for jobs of every kind."""
