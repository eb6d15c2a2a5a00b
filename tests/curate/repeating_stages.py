"""Stages of tests in a module that worker processes import quickly: no pytest, no datasets."""

from __future__ import annotations

import time
from dataclasses import dataclass

from evolvent.errors import SampleInvalid


@dataclass(frozen=True)
class Times:
    """Repeats a row; refuses multiples of seven."""

    count: int = 2
    name: str = "times"
    version: int = 1

    def parameters(self):
        return {"count": self.count}

    def __call__(self, row):
        if row["n"] % 7 == 0:
            raise SampleInvalid("a multiple of seven", value=row["n"])
        return [{**row, "copy": k} for k in range(self.count)]


@dataclass(frozen=True)
class Slow(Times):
    def __call__(self, row):
        time.sleep(0.02)
        return super().__call__(row)
