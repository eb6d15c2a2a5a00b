"""The study that `python -m benchmarks.openr` plays and reports."""
