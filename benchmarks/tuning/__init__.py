"""The study that `python -m benchmarks.tuning` plays and reports."""
