"""MAT: a team's decision is a sequence, and a transformer over the agents generates it one agent after the other.

"Multi-Agent Reinforcement Learning is a Sequence Modeling Problem" (arXiv 2205.14953). The advantage of a joint
action is the sum of the advantages of its agents, each given the actions of those before it, in any order; so a
policy that decides in sequence and improves each agent in turn improves the team, and a search over `A^n`
actions becomes one over `n A`.

The same loop trains the comparisons: MAT-Dec and the ablations of the same paper, MAPPO (arXiv 2103.01955) and
HAPPO (arXiv 2109.11251). It departs from the published code on purpose: an episode that is cut at its horizon
continues in its value, dead agents are left out of the losses unless a switch says otherwise, and a ratio
belongs to an agent even where its action has several numbers. Part-level advantages (`update.credit="part"`)
are ours.

Few-shot: `start` is the folder of a policy that was trained on other tasks or with another number of agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from evolvent.config import Config, redact
from evolvent.errors import ConfigError, Problem
from evolvent.identity import version_1_text, version_1_values
from evolvent.marl.settings import TeamUpdateConfig
from evolvent.worlds.teams.base import Resumable, TeamBatch

if TYPE_CHECKING:
    from evolvent.marl.policy import TeamPolicy

__all__ = ["PRESETS", "MATConfig", "TrainedTeam", "mat"]

_STATE_FILE = "training.safetensors"
_RESUMABLE_SETTINGS = (
    "decisions",
    "keep_every",
)  # may differ where a training is taken up: they say when to stop and to write


class MATConfig(Config):
    """Settings of MAT and of its comparisons."""

    kind: Literal["mat", "mat_encoder", "mat_decoder", "mat_gru", "mat_dec", "mappo", "happo"] = Field(
        default="mat", description="Network and update rule."
    )
    width: int = Field(default=64, ge=2, description="Width of the network.")
    heads: int = Field(default=1, ge=1, description="Number of attention heads.")
    blocks: int = Field(default=1, ge=1, description="Number of blocks of encoder and decoder.")
    share: bool = Field(default=False, description="Shares one actor among all agents (mat_dec, happo).")
    rows: int = Field(default=40, ge=1, description="Number of episodes that are played side by side.")
    steps: int = Field(
        default=100, ge=1, description="Number of team decisions of each of these episodes in a rollout."
    )
    decisions: int = Field(
        default=10_000_000, ge=1, description="Number of team decisions of the whole training, over all episodes."
    )
    keep_every: int = Field(default=10, ge=1, description="Number of rollouts between two checkpoints.")
    update: TeamUpdateConfig = Field(default=TeamUpdateConfig(), description="Settings of the update.")
    seed: int = Field(default=0, ge=0, description="Seed of weights, episodes and minibatches.")

    @model_validator(mode="after")
    def _check_combination(self) -> MATConfig:
        problems = []
        if self.width % self.heads:
            problems.append(Problem("heads", f"got {self.heads}, expected a divisor of width {self.width}"))
        if self.kind == "mat_gru" and self.width % 2:
            problems.append(Problem("width", f"got {self.width}, expected an even number for mat_gru"))
        if self.update.credit == "part" and self.kind != "mat":
            problems.append(
                Problem(
                    "update.credit",
                    f"{self.kind} has no decoder to read values from",
                    "set 'action', or kind 'mat'",
                )
            )
        if self.rows * self.steps < self.update.minibatches:
            problems.append(
                Problem(
                    "update.minibatches",
                    f"got {self.update.minibatches}, expected at most the {self.rows * self.steps} decisions",
                )
            )
        if problems:
            raise ConfigError(problems)
        return self


PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "smac": {
            "rows": 32,
            "steps": 100,
            "update": {
                "lr": 5e-4,
                "ppo_epochs": 15,
                "clip_range": 0.05,
                "minibatches": 1,
                "entropy_coef": 0.01,
                "grad_norm": 10.0,
            },
        },
        "mamujoco": {
            "rows": 40,
            "steps": 100,
            "update": {
                "lr": 5e-5,
                "ppo_epochs": 10,
                "clip_range": 0.05,
                "minibatches": 40,
                "entropy_coef": 0.001,
                "grad_norm": 0.5,
            },
        },
        "football": {
            "rows": 20,
            "steps": 200,
            "update": {
                "lr": 5e-4,
                "ppo_epochs": 10,
                "clip_range": 0.05,
                "minibatches": 1,
                "entropy_coef": 0.01,
                "grad_norm": 0.5,
            },
        },
        "hands": {
            "rows": 80,
            "steps": 8,
            "decisions": 50_000_000,
            "update": {
                "lr": 5e-5,
                "ppo_epochs": 5,
                "clip_range": 0.2,
                "minibatches": 1,
                "entropy_coef": 0.001,
                "grad_norm": 0.5,
                "gamma": 0.96,
            },
        },
    }
)
"""The paper's settings by benchmark; the length of a rollout in "hands" is ours, the source at hand gives none."""


@dataclass(frozen=True)
class TrainedTeam:
    """A trained team. `history`: one row per update, with the decisions so far and the episodes that ended in it."""

    policy: TeamPolicy
    history: tuple[dict[str, float], ...]


def mat(
    config: MATConfig,
    batch: TeamBatch,
    *,
    start: Path | None = None,
    folder: Path | None = None,
    on_row: Callable[[Mapping[str, float]], None] | None = None,
    device: str = "cpu",
) -> TrainedTeam:
    """Trains a team.

    Args:
        batch: `config.rows` episodes side by side.
        start: a policy to begin from, of a team of any size (few-shot).
        folder: where states are stored; an existing training is resumed, also with a larger number of decisions.
        on_row: called with each row of the history.
        device: where the network plays and learns, as "cuda:1"; the episodes are played in main memory.
    Raises:
        ConfigError: the batch has another size, the folder has the state of other settings, or the device is not
            there.
        ShapeMismatch: the spaces of the start differ from the batch's.
        NonFinite: training diverged.
    """
    from evolvent.marl.checkpoint import TeamState, read_state, write_state
    from evolvent.marl.policy import TeamPolicy, team_shape
    from evolvent.marl.rollout import collect_ended
    from evolvent.marl.updates import TeamLearner
    from evolvent.models.placement import find_device
    from evolvent.models.team_files import load_team, make_team
    from evolvent.rollout.teams import resume_collector

    if batch.size != config.rows:
        raise ConfigError("wrong batch size", value=batch.size, expected=f"{config.rows} rows")
    shape = team_shape(
        batch.spec,
        config.kind,
        width=config.width,
        heads=config.heads,
        blocks=config.blocks,
        share=config.share,
        prefix_values=config.update.credit == "part",
    )
    model = make_team(shape, seed=config.seed) if start is None else load_team(start, expected=shape)
    policy = TeamPolicy(model.to(find_device(device)), batch.spec)
    learner = TeamLearner(policy, config.update, seed=config.seed)
    fixed_settings = {
        name: value for name, value in redact(version_1_values(config)).items() if name not in _RESUMABLE_SETTINGS
    }
    settings = {
        **fixed_settings,
        "start": str(start),
        "tasks": [task.id for task in batch.tasks],
        "spec": version_1_text(batch.spec),
    }
    state = read_state(folder / _STATE_FILE, learner, settings=settings) if folder else None
    state = state or TeamState(decisions=0, first=0, running=np.zeros(batch.size), batch=None, history=())
    collector, running = resume_collector(
        batch, first=state.first, running=state.running, snapshot=state.batch, seed=config.seed
    )
    while state.decisions < config.decisions:
        rollout = collector.collect(policy, config.steps)
        metrics = learner.update(rollout)
        ended, running = collect_ended(rollout, running)
        decisions = state.decisions + config.rows * config.steps
        row = {"decisions": float(decisions), **metrics, **ended.summarize()}
        state = TeamState(
            decisions=decisions,
            first=int(rollout.last.number.max()) + 1,
            running=running,
            history=(*state.history, row),
            batch=collector.snapshot() if isinstance(batch, Resumable) else None,
        )
        if on_row is not None:
            on_row(row)
        if folder and (learner.updates % config.keep_every == 0 or decisions >= config.decisions):
            write_state(folder / _STATE_FILE, learner, state, settings=settings)
    return TrainedTeam(policy, state.history)
