"""The study that `python -m benchmarks.evolve` plays and reports."""
