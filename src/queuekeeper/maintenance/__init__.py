"""Cleans and mends queues that are in use, with a plan, an approval and a way back."""
