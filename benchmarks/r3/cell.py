"""What one cell of the study of reverse curricula is: a training within a budget from its base, a panel played.

`benchmarks/r3/protocol.py` fixes panels and settings, `benchmarks.r3` says which cells there are and compares them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.r3.bases import base_of
from benchmarks.r3.protocol import PANELS, Cell, Protocol, panel, world_of
from benchmarks.tuning.cell import sources
from evolvent.agents.language import LanguageAgent
from evolvent.backend import RunStage
from evolvent.engine.asks import GREEDY
from evolvent.engine.local import LocalEngine
from evolvent.errors import ScoringError
from evolvent.learn.objectives import weighted_nll
from evolvent.methods.r3 import R3Config, r3
from evolvent.models.policy import Policy
from evolvent.rl.trainer import PolicyTrainer, RLSpec
from evolvent.rollout.episode import collect
from evolvent.run import Run
from evolvent.scale.initial import collect_demonstrations
from evolvent.scale.local_backend import LocalBackend
from evolvent.trajectory import Start, Trajectory

__all__ = ["Budgeted", "run_cell", "solved"]


def solved(protocol: Protocol, policy: Policy, task: str, split: str) -> list[bool]:
    """Whether each task of a panel is solved, greedily and from its beginning."""
    world, tasks = world_of(protocol, task), panel(protocol, task, split)
    agent = LanguageAgent(policy, GREEDY, max_tokens=PANELS[task].max_tokens)
    engine = LocalEngine(policy, slots=protocol.slots)
    playing = collect({world.name: world}, [*map(Start, tasks)], agent, engine=engine, slots=protocol.slots)
    won = {one.task.id: one.success for one in playing}
    if None in won.values():
        raise ScoringError("episodes that could not be scored", value=[*won.values()].count(None))
    return [bool(won[one.id]) for one in tasks]


class Budgeted(LocalBackend):
    """Verbs whose practices end with the iteration in which the environment steps are used up."""

    env_steps = 0
    most = 0

    def train_rl(self, policy: Policy, stage: RunStage, *, spec: RLSpec) -> PolicyTrainer:
        practice = super().train_rl(policy, stage, spec=spec)
        rounds, play = practice.iterations, practice.rollout

        def counted(starts: Sequence[Start], **more: Any) -> list[Trajectory]:
            played = play(starts, **more)
            self.env_steps += sum(len(one.steps) for one in played)
            return played

        def limited() -> Iterator[int]:
            for number in rounds():  # what an iteration came to is told when the next is asked for
                if self.env_steps >= self.most:
                    return
                yield number

        # measured when it is over, and not on the way
        vars(practice).update(iterations=limited, rollout=counted, should_evaluate=lambda: False)
        return practice


def run_cell(protocol: Protocol, folder: Path, cell: Cell, sft_tokens: int) -> dict[str, Any]:
    """Train and measure, cells of development seeds on the dev panel; the row to keep."""
    base, world = base_of(protocol, cell.task, cell.model, cell.seed, folder=folder), world_of(protocol, cell.task)
    began = time.process_time()
    shown = collect_demonstrations([world], panel(protocol, cell.task, "train"), seed=cell.seed)
    verbs = Budgeted(
        {world.name: world},
        protocol.again.model_copy(update={"lr": cell.rate}),
        slots=protocol.slots,
        max_tokens=PANELS[cell.task].max_tokens,
        rl_train=protocol.train.model_copy(update={"lr": cell.rate}),
    )
    verbs.most = protocol.env_steps
    with tempfile.TemporaryDirectory() as scratch, Run(Path(scratch), verbs, seed=cell.seed) as run:
        if cell.method == "sft":
            policy = run.fit(base, shown, weighted_nll, tokens=sft_tokens)
        else:
            policy = r3(base, [one.task for one in shown], shown, config=config_of(protocol, cell, shown), run=run)
        used = dict(verbs.usage())
    trained = time.process_time()
    split = "dev" if cell.seed in protocol.development else "test"
    before, outcomes = (solved(protocol, one, cell.task, split) for one in (base, policy))
    return {
        **asdict(cell),
        "split": split,
        "digest": protocol.digest,
        "accuracy": sum(outcomes) / len(outcomes),
        "base": sum(before) / len(before),
        "outcomes": "".join(str(int(won)) for won in outcomes),
        "env_steps": verbs.env_steps,
        "replayed": used.pop("replayed"),
        **{f"tokens_{name}": count for name, count in used.items()},
        "cpu_train_s": round(trained - began, 1),
        "cpu_play_s": round(time.process_time() - trained, 1),
        "sources": sources(),
    }


def config_of(protocol: Protocol, cell: Cell, shown: Sequence[Trajectory]) -> R3Config:
    """R3's settings of a cell. A staged curriculum must know how long it will be: from the steps that are left."""
    config = protocol.r3.model_copy(update={"kind": cell.method})
    if cell.method != "staged":
        return config
    long = sum(len(one.steps) for one in shown) / len(shown)
    left = 1 + (long - 1) / 2  # on average over the way
    episodes = config.practice.tasks_per_iteration * config.practice.group_size
    count = max(config.stages + 1, round(protocol.env_steps / (left * episodes)))
    return config.model_copy(update={"practice": config.practice.model_copy(update={"iterations": count})})
