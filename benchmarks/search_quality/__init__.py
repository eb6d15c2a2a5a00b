"""The study that `python -m benchmarks.search_quality` plays and reports."""
