"""The study that `python -m benchmarks.mat` plays and reports."""
