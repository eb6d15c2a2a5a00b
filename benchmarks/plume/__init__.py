"""The study that `python -m benchmarks.plume` plays and reports."""
