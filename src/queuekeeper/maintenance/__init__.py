"""Cleans and repairs queues in use, with a plan, an approval and an undo."""
