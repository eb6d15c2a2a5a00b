"""The study that `python -m benchmarks.sequence` plays and reports."""
