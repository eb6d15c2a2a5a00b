"""A small recorded run, made by hand: three episodes, one won, one lost, one that could not be scored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from evolvent.errors import ErrorRecord
from evolvent.store.store import Store
from evolvent.trajectory import Generation, Score, Step, Task, Trajectory


def episodes() -> list[Trajectory]:
    made = []
    for number, success in enumerate((True, False, None)):
        task = Task("lookup", "1", {"seed": number}, kind="boss", tier="evo", split="dev")
        generation = Generation(np.array([1, 2], np.int32), np.array([False, True]), np.array([0, -0.5], np.float32))
        step = Step(
            f"find boss of name{number}",
            "answer x",
            None if success is None else float(success),
            generations=(generation,),
        )
        error = ErrorRecord("StepTimeout", "no answer in 1 s", 0) if success is None else None
        score = Score() if success is None else Score(float(success), float(success), success)
        made.append(
            Trajectory(
                f"explore/{task.id}/0",
                task,
                (step,),
                "right" if success else "wrong",
                "error" if error else "world",
                score,
                error=error,
            )
        )
    return made


def record(folder: Path) -> list[Trajectory]:
    """Write the run; returns its episodes."""
    made = episodes()
    with Store.open(folder / "trajectories", writing=True) as store:
        for trajectory in made:
            store.append(trajectory)
    row = {"method": "collect", "name": folder.name, "seed": 7, "created": "2026-01-02T03:04:05Z", "state": "finished"}
    (folder / "run.json").write_text(json.dumps(row), encoding="utf-8")
    return made
