"""The study that `python -m benchmarks.stopping` plays and reports."""
