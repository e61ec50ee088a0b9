"""What a migration left behind, as one record and as files."""
