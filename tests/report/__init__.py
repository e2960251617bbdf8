"""The reports in a real browser."""
