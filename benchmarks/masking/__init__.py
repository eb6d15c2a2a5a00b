"""The study that `python -m benchmarks.masking` plays and reports."""
