"""The SQL event broker of schema ``pgmb``; it knows neither Airflow nor Spark."""
