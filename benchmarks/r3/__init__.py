"""The study that `python -m benchmarks.r3` plays and reports."""
