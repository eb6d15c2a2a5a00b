"""A small store for the faults of storing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from evolvent.store.store import Store
from evolvent.trajectory import Generation, Score, Step, Task, Trajectory


def episode(number: int, *, steps: int = 2, text: str = "a room with a box") -> Trajectory:
    """A small finished episode, the same for the same number; its id is `e<number>`."""
    ids = np.arange(12, dtype=np.int32) + number
    logprobs = np.where(ids % 2, -ids / 16, 0).astype(np.float32)
    one = Generation(ids, ids % 2 == 1, logprobs)
    played = tuple(Step(f"{text} {i}", f"go {i}", 0.0, generations=(one,)) for i in range(steps))
    return Trajectory(f"e{number}", Task("lookup", "1", {"n": number}), played, "end", "world", Score(1.0, 1.0, True))


def filled(path: Path, count: int, **opened) -> list[Trajectory]:
    """A closed store of that many episodes; returns them."""
    episodes = [episode(i) for i in range(count)]
    with Store.open(path, writing=True, **opened) as store:
        for trajectory in episodes:
            store.append(trajectory)
    return episodes


def segment(path: Path) -> Path:
    """The only segment of the log."""
    (found,) = (path / "log").iterdir()
    return found


def python(code: str, *arguments: object, **more) -> subprocess.Popen[str]:
    """A real process that runs the code with this folder and the library importable."""
    here = str(Path(__file__).parent)
    paths = [here, *(p for p in sys.path if p and Path(p).is_dir())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        **more,
    )
