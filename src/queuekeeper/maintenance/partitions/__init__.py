"""Creates partitions of PostgreSQL tables ahead of their data, and retires old ones, with a way back."""
