"""Stores of persistent DEVICE sessions; they know neither Airflow nor Spark."""
