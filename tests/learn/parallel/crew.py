"""Ranks for tests: see `benchmarks/crew.py`."""

from benchmarks.crew import Crew

__all__ = ["Crew"]
