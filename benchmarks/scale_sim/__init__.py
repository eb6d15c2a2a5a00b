"""The study that `python -m benchmarks.scale_sim` plays and reports."""
