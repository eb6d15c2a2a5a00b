"""Small worlds that behave, fail or hang on demand."""

import threading

import pytest

import evolvent as ev


class Count(ev.TextWorld):
    """Say the numbers after the first one; some tasks fail, hang or are slow."""

    name, horizon, instructions = "count", 4, "count"

    def __init__(self, *, blocking=True):
        self.run_in_thread, self.closed, self.release = blocking, [], threading.Event()

    def specs(self):
        return [{"number": n, "mood": "fine"} for n in range(60)]

    def play(self, spec):
        try:
            if spec["mood"] == "fails at reset":
                raise OSError("no disk")
            said = yield f"say {spec['number'] + 1}"
            if spec["mood"] == "fails":
                raise ZeroDivisionError("a bug in the world")
            if spec["mood"] == "hangs":
                self.release.wait(60)
            if spec["mood"] == "slow":
                self.release.wait(0.2)
            while said != str(spec["number"] + 1):
                said = yield "no"
            return 1.0
        finally:
            self.closed.append(spec["number"])

    def expert(self, task):
        return [str(task.spec["number"] + 1)]


@pytest.fixture
def world():
    world = Count()
    yield world
    world.release.set()


def task(number, mood="fine"):
    return ev.Task("count", "1", {"number": number, "mood": mood}, "count")
