"""The study that `python -m benchmarks.prm` plays and reports."""
