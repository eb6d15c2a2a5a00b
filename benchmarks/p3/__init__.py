"""The study that `python -m benchmarks.p3` plays and reports."""
