"""MAT: a team's decision is a sequence, and a transformer over the agents says it one agent after the other.

"Multi-Agent Reinforcement Learning is a Sequence Modeling Problem" (arXiv 2205.14953). The advantage of a joint action
is the sum of the advantages of its agents, each given what those before it do, in any order; so a policy that decides
in sequence and improves each agent in turn improves the team, and a search over `A^n` actions becomes one over `n A`.

The same loop trains what it is compared with: MAT-Dec and the ablations of the same paper, MAPPO (arXiv 2103.01955)
and HAPPO (arXiv 2109.11251). It departs from the published code on purpose: an episode that is cut at its horizon goes
on in its value, agents that died are left out of the losses unless a switch says otherwise, and a ratio belongs to an
agent even where its action has several numbers. Credit by parts (`update.credit="part"`) is ours.

Few-shot: `start` is the folder of a policy that was trained on other tasks or with another number of agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from evolvent.config import Config, as_dict
from evolvent.errors import ConfigError, Problem, WorldError
from evolvent.identity import version_1_text
from evolvent.marl.updates import TeamUpdates
from evolvent.worlds.teams.base import Resumable, TeamBatch

if TYPE_CHECKING:
    from evolvent.marl.checkpoint import TeamState
    from evolvent.marl.policy import TeamPolicy
    from evolvent.marl.rollout import Ended
    from evolvent.rollout.teams import TeamCollector

__all__ = ["MAT", "PRESETS", "TrainedTeam", "mat"]

_STATE = "training.safetensors"
_FREE = ("decisions", "keep_every")  # may differ where a training is taken up: they say when to stop and to write


class MAT(Config):
    """What can be chosen about MAT and what it is compared with."""

    kind: Literal["mat", "mat_encoder", "mat_decoder", "mat_gru", "mat_dec", "mappo", "happo"] = Field(
        default="mat", description="the network, and how it is updated"
    )
    width: int = Field(default=64, ge=2, description="of the network")
    heads: int = Field(default=1, ge=1, description="of its attention")
    blocks: int = Field(default=1, ge=1, description="of its trunks")
    share: bool = Field(default=False, description="one actor for all agents (mat_dec, happo)")
    rows: int = Field(default=40, ge=1, description="episodes that are played side by side")
    steps: int = Field(default=100, ge=1, description="decisions of each row in a rollout")
    decisions: int = Field(default=10_000_000, ge=1, description="decisions of all rows together")
    keep_every: int = Field(default=10, ge=1, description="rollouts between two states that can be taken up again")
    update: TeamUpdates = Field(default=TeamUpdates(), description="how a rollout is learned from")
    seed: int = Field(default=0, ge=0, description="of everything random")

    @model_validator(mode="after")
    def _fits(self) -> MAT:
        problems = []
        if self.width % self.heads:
            problems.append(Problem("heads", f"{self.heads} heads do not divide a width of {self.width}"))
        if self.kind == "mat_gru" and self.width % 2:
            problems.append(Problem("width", f"is {self.width}", "give mat_gru, which reads both ways, an even one"))
        if self.update.credit == "part" and self.kind != "mat":
            problems.append(
                Problem(
                    "update.credit",
                    f"{self.kind} has no decoder that values could be read in",
                    "give 'action', or kind 'mat'",
                )
            )
        if self.rows * self.steps < self.update.minibatches:
            problems.append(
                Problem(
                    "update.minibatches",
                    f"{self.update.minibatches} of {self.rows * self.steps} decisions",
                    "give fewer",
                )
            )
        if problems:
            raise ConfigError(problems)
        return self


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "smac": {
            "rows": 32,
            "steps": 100,
            "update": {"lr": 5e-4, "epochs": 15, "clip": 0.05, "minibatches": 1, "entropy": 0.01, "grad_norm": 10.0},
        },
        "mamujoco": {
            "rows": 40,
            "steps": 100,
            "update": {"lr": 5e-5, "epochs": 10, "clip": 0.05, "minibatches": 40, "entropy": 0.001, "grad_norm": 0.5},
        },
        "football": {
            "rows": 20,
            "steps": 200,
            "update": {"lr": 5e-4, "epochs": 10, "clip": 0.05, "minibatches": 1, "entropy": 0.01, "grad_norm": 0.5},
        },
        "hands": {
            "rows": 80,
            "steps": 8,
            "decisions": 50_000_000,
            "update": {
                "lr": 5e-5,
                "epochs": 5,
                "clip": 0.2,
                "minibatches": 1,
                "entropy": 0.001,
                "grad_norm": 0.5,
                "gamma": 0.96,
            },
        },
    }
)
"""The paper's settings by benchmark; the length of a rollout in "hands" is ours, the source at hand gives none."""


@dataclass(frozen=True)
class TrainedTeam:
    """What was learned. `history`: one row an update, with the decisions so far and the episodes that ended in it."""

    policy: TeamPolicy
    history: tuple[dict[str, float], ...]


def mat(
    config: MAT,
    batch: TeamBatch,
    *,
    start: Path | None = None,
    folder: Path | None = None,
    told: Callable[[Mapping[str, float]], None] | None = None,
) -> TrainedTeam:
    """Train a team.

    Args:
        batch: `config.rows` episodes side by side.
        start: a policy to begin from, of a team of any size (few-shot).
        folder: where states are kept; a training that is begun again there goes on where it was, also to more
            decisions than were asked for at first.
        told: called with each row of the history.
    Raises:
        ConfigError: a batch of another size; a folder with the state of other settings. ShapeMismatch: a start whose
            spaces are not the batch's. NonFinite: learning broke down.
    """
    from evolvent.marl.checkpoint import TeamState, read_state, write_state
    from evolvent.marl.policy import TeamPolicy, shape_of
    from evolvent.marl.rollout import ended_episodes
    from evolvent.marl.updates import TeamLearner
    from evolvent.models.team_files import load_team, make_team

    if batch.size != config.rows:
        raise ConfigError("a batch of another size", value=batch.size, expected=f"{config.rows} rows")
    shape = shape_of(
        batch.spec,
        config.kind,
        width=config.width,
        heads=config.heads,
        blocks=config.blocks,
        share=config.share,
        prefix_values=config.update.credit == "part",
    )
    model = make_team(shape, seed=config.seed) if start is None else load_team(start, expected=shape)
    policy = TeamPolicy(model, batch.spec)
    learner = TeamLearner(policy, config.update, seed=config.seed)
    kept = {name: value for name, value in as_dict(config).items() if name not in _FREE}
    settings = {
        **kept,
        "start": str(start),
        "tasks": [task.id for task in batch.tasks],
        "spec": version_1_text(batch.spec),
    }
    state = read_state(folder / _STATE, learner, settings=settings) if folder else None
    state = state or TeamState(decisions=0, first=0, running=np.zeros(batch.size), batch=None, history=())
    collector, running = _taken_up(batch, state, config.seed)
    while state.decisions < config.decisions:
        rollout = collector.collect(policy, config.steps)
        measured = learner.update(rollout)
        ended, running = ended_episodes(rollout, running)
        decisions = state.decisions + config.rows * config.steps
        row = {"decisions": float(decisions), **measured, **_told(ended)}
        state = TeamState(
            decisions=decisions,
            first=int(rollout.last.number.max()) + 1,
            running=running,
            history=(*state.history, row),
            batch=collector.snapshot() if isinstance(batch, Resumable) else None,
        )
        if told is not None:
            told(row)
        if folder and (learner.updates % config.keep_every == 0 or decisions >= config.decisions):
            write_state(folder / _STATE, learner, state, settings=settings)
    return TrainedTeam(policy, state.history)


def _taken_up(batch: TeamBatch, state: TeamState, seed: int) -> tuple[TeamCollector, NDArray[np.float64]]:
    """A collector where a training was, and what its running episodes have earned.

    Episodes that were not kept, or that an environment does not play again to the same, begin anew: the training goes
    on, but not to the last bit.
    """
    from evolvent.rollout.teams import TeamCollector

    collector = TeamCollector(batch, first=state.first, seed=seed)
    if state.batch is not None:
        try:
            collector.restore(state.batch)
        except WorldError:
            return TeamCollector(batch, first=state.first, seed=seed), np.zeros(batch.size)
        return collector, state.running
    return collector, np.zeros(batch.size)


def _told(ended: Ended) -> dict[str, float]:
    """What is known of the episodes that ended: nothing where none did."""
    if not len(ended.returns):
        return {"episodes": 0.0}
    found = {
        "episodes": float(len(ended.returns)),
        "episode_return": float(ended.returns.mean()),
        "episode_length": float(ended.lengths.mean()),
    }
    return found if ended.success is None else {**found, "success": float(ended.success.mean())}
