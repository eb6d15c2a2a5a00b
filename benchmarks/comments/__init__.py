"""The study that `python -m benchmarks.comments` plays and reports."""
