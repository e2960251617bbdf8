"""Measuring a served model: a lean streaming client, levels of load, statistics and verdicts."""
