"""Worlds that players on Ray make by name: episodes that take their time, and one that takes its process with it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import evolvent as ev
from evolvent.errors import SampleInvalid

PAUSE_S = 0.01


class Pausing(ev.TextWorld):
    """Four steps with a pause each; 1 where the first word said begins with an odd byte.

    Args:
        deadly: the number of the task whose episode kills the process that plays it.
    """

    name, horizon, instructions, run_in_thread = "pausing", 4, "Say something.", False
    reward_range = (0.0, 1.0)

    def __init__(self, deadly=None):
        self.deadly = deadly

    def specs(self):
        return [{"n": n} for n in range(120)]

    def play(self, spec):
        said = yield f"task {spec['n']}"
        if spec["n"] == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        for turn in range(3):
            time.sleep(PAUSE_S)
            yield f"turn {turn}"
        return float(ord(said[:1] or "b") % 2)


def made(deadly=None):
    return {"pausing": Pausing(deadly), "marking": Marking()}


def made_slowly(seconds):
    time.sleep(seconds)
    return made()


class Marking(ev.TextWorld):
    """A response of one turn: right where it holds the letter e."""

    name, horizon, instructions, run_in_thread = "marking", 1, "Say e.", False
    reward_range = (0.0, 1.0)

    def specs(self):
        return [{"n": n} for n in range(40)]

    def play(self, spec):
        said = yield f"task {spec['n']}"
        return float("e" in said)


@dataclass(frozen=True)
class Doubled:
    """Every row twice, but for one that is refused; -1: it divides by nothing; None: no row is left."""

    but: int | None
    name, version = "doubled", 1

    def parameters(self):
        return {"but": self.but}

    def __call__(self, row):
        if self.but is None:
            return []
        if row["n"] == self.but:
            raise SampleInvalid("three", value=row["n"])
        return [row, {"n": row["n"] * (1 if self.but + 1 else 1 // 0)}]
