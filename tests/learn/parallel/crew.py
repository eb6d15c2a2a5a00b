"""Ranks for tests: see `benchmarks/crew.py`; forked from the process that all tests fork from."""

from benchmarks import crew
from tests.forks import context

__all__ = ["Crew"]


class Crew(crew.Crew):
    def __init__(self, size, *, timeout=120):
        context()
        super().__init__(size, timeout=timeout)
