"""The study that `python -m benchmarks.trad_agents` plays and reports."""
