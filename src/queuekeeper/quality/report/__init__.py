"""Reports the results of quality runs as one record and as files."""
