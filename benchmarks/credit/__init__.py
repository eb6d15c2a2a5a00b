"""The study that `python -m benchmarks.credit` plays and reports."""
