"""What judgements of quality found, as one record and as files."""
