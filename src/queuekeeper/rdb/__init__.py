"""Reads RDB files, the snapshots of Redis 7 and 8 and of Valkey 8 and 9, as a stream."""
