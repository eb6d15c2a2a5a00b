"""The study that `python -m benchmarks.trad` plays and reports."""
