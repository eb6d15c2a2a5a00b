"""Figures of the house: how far the code's language is from the field's, and how many files a reader goes through.

Language: local names that say nothing, functions named by a bare participle, docstrings that open with a verb or with
a question word, switched-off formatting, modules that one neighbor alone imports. Reading: the files and functions of
the package that one GRPO iteration enters (rollout, scores, advantages, update), and the files between an observation
and the loss (one episode collected, one fit), both traced with `sys.setprofile`. Weight: files below
`benchmarks/results`.

    python -m benchmarks.house --json
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import evolvent as ev
from benchmarks.house_language import measure_language
from benchmarks.reporting import RESULTS, about, command_line, finish, show
from evolvent.methods.grpo import GRPOConfig, build_preset
from evolvent.rl.trainer import RLConfig, RLSpec

ROOT = Path(__file__).parents[1]
PACKAGE = str(ROOT / "src" / "evolvent")
AIMS = {
    "vague_names": 2.0,
    "participle_functions": 0.5,
    "verb_docstrings": 70.0,
    "question_docstrings": 5,
    "fmt_skips": 50,
    "single_neighbour_modules": 60,
    "grpo_files": 50,
    "grpo_functions": 360,
    "observation_to_loss_files": 48,
    "result_files": 60,
}
_ANONYMOUS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>", "<module>")


def trace(work: Callable[[], None]) -> tuple[int, int]:
    """Runs the work; returns how many files and named functions of the package it entered."""
    entered: set[tuple[str, str, int]] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            entered.add((code.co_filename, code.co_name, code.co_firstlineno))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    named = [code for code in entered if code[1] not in _ANONYMOUS]
    return len({file for file, _, _ in entered}), len(named)


def trace_grpo_iteration() -> tuple[int, int]:
    """Returns the files and functions of one GRPO iteration over a small policy."""
    world = ev.Lookup()
    tasks = world.tasks("train", world.tiers[0])[:4]
    config = GRPOConfig(practice=RLConfig(iterations=1, tasks_per_iteration=2, group_size=2))
    preset = build_preset(config)
    spec = RLSpec("grpo", config.practice, preset.objective)
    counts = (0, 0)
    with tempfile.TemporaryDirectory() as folder, ev.local_run(Path(folder) / "run", [world]) as run:
        with run.train_rl(ev.make_policy([world]), spec, [task.id for task in tasks]) as trainer:
            for _ in trainer.iterations():

                def iterate() -> None:
                    rollout = trainer.score(trainer.rollout(trainer.next_starts(tasks)))
                    trainer.update(rollout, rollout.estimate_advantages(preset.estimator))

                counts = trace(iterate)
    return counts


def trace_observation_to_loss() -> int:
    """Returns the files between an observation and the loss: one episode is collected and fitted once."""
    world = ev.Lookup()
    start = ev.Start(world.tasks("train", world.tiers[0])[0])
    with tempfile.TemporaryDirectory() as folder, ev.local_run(Path(folder) / "run", [world]) as run:
        policy, objective = ev.make_policy([world]), ev.weighted_nll

        def collect_and_fit() -> None:
            run.fit(policy, run.collect(policy, [start]), objective, tokens=10)

        return trace(collect_and_fit)[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures everything; prints a table, or one JSON object."""
    parser = command_line("house", __doc__, quick="the same figures", save=RESULTS / "house.json")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    grpo_files, grpo_functions = trace_grpo_iteration()
    figures = {
        "benchmark": "house",
        **measure_language(ROOT / "src").figures(),
        "grpo_files": grpo_files,
        "grpo_functions": grpo_functions,
        "observation_to_loss_files": trace_observation_to_loss(),
        "result_files": sum(path.is_file() for path in RESULTS.rglob("*")),
        "goals": AIMS,
        **about("torch", threads=1),
    }
    show(figures, without=("goals", "versions", "machine"))
    finish(figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
