"""The backend of policies over numbers: it plays, trains and measures them in worlds of Gymnasium, in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, cast

import numpy as np
import torch

from evolvent.backend import RunStage
from evolvent.errors import ConfigError, Problem
from evolvent.marl.control import ControlSpec, ControlTrainer, check_control_policy
from evolvent.marl.policy import TeamPolicy
from evolvent.models.placement import find_device
from evolvent.models.team_actions import TeamModel
from evolvent.models.team_files import load_team, save_team
from evolvent.rollout.evaluate import Evaluation, example_row, panel_starts, summarize_outcomes
from evolvent.rollout.teams import play_episodes
from evolvent.run import Run
from evolvent.scale.local_backend import EvaluationPanel
from evolvent.trajectory import JsonObject, Start, Step, Trajectory, canonical_json, trajectory_name
from evolvent.worlds.gym.rows import make_control_batch, tell_action, tell_numbers
from evolvent.worlds.gym.world import GymnasiumWorld

__all__ = ["ControlBackend", "control_run"]


@dataclass(frozen=True)
class ControlBackend:
    """Runs the operations of a run for policies over numbers.

    Args:
        worlds: the worlds by name.
        panel: the tasks of evaluations.
        rows: episodes that are played side by side in a measurement.
        device: where policies are loaded.
    """

    worlds: Mapping[str, GymnasiumWorld]
    panel: EvaluationPanel = field(default_factory=EvaluationPanel)
    rows: int = 16
    device: str = "cpu"

    def collect(
        self,
        policy: TeamModel,
        starts: Sequence[Start],
        stage: RunStage,
        *,
        temperature: float = 1.0,
        horizon: int | None = None,
    ) -> Iterator[Trajectory]:
        """Plays the starts; at temperature 0 the likeliest actions. Yields each trajectory when it is stored.

        Raises:
            ConfigError: another horizon than the world's. ShapeMismatch: a policy of other spaces.
        """
        if horizon is not None:
            raise ConfigError("a policy over numbers plays whole episodes", value=f"horizon {horizon}")
        names = {name: [start for start in starts if start.task.world == name] for name in self.worlds}
        num_episodes, num_steps, num_successes, num_scored = 0, 0, 0, 0
        for name, world_starts in names.items():
            if not world_starts:
                continue
            world = self.worlds[name]
            check_control_policy(policy, world)
            tasks = [start.task for start in world_starts]
            with closing(make_control_batch(world, tasks, min(self.rows, len(tasks)))) as batch:
                player = TeamPolicy(policy, batch.spec)
                episodes = play_episodes(
                    batch, player, len(tasks), seed=stage.seed, greedy=temperature == 0.0, stage=stage.name
                )
            for start, episode in zip(world_starts, episodes, strict=True):
                trajectory = _to_single_agent(episode, start, stage.name, world)
                stage.store.append(trajectory)
                num_episodes, num_steps = num_episodes + 1, num_steps + len(trajectory.steps)
                num_successes += trajectory.success is True
                num_scored += trajectory.success is not None
                yield trajectory
            rate = {"success": num_successes / num_scored} if num_scored else {}
            stage.log({"episodes": num_episodes, "env_steps": num_steps, **rate})

    def evaluate(
        self,
        policy: TeamModel,
        stage: RunStage,
        *,
        split: str | None = None,
        search: object = None,
        value_model: TeamModel | None = None,
    ) -> tuple[list[Evaluation], list[JsonObject]]:
        """Plays the panel, or that of another split, with the likeliest actions; every episode is stored."""
        if search is not None:
            _refuse("be searched with")
        panel = self.panel
        starts = panel_starts(self.worlds, split=split or panel.split, tiers=panel.tiers, limit=panel.limit)
        episodes = dict(stage.finished)
        remaining = [start for start in starts if trajectory_name(start, stage.name) not in episodes]
        for trajectory in self.collect(policy, remaining, stage, temperature=panel.temperature):
            episodes[trajectory.id] = trajectory
        ordered = [episodes[trajectory_name(start, stage.name)] for start in starts]
        examples = [
            example_row(
                _tell_episode(trajectory, self.worlds[trajectory.task.world]),
                instructions=self.worlds[trajectory.task.world].instructions,
                word=str,
            )
            for trajectory in ordered[: panel.examples]
        ]
        return summarize_outcomes(ordered), cast("list[JsonObject]", examples)

    def train_rl(self, policy: TeamModel, stage: RunStage, *, spec: ControlSpec) -> ControlTrainer:
        """Returns a trainer that plays and improves a copy of the policy from its last checkpoint.

        Raises:
            ConfigError: several worlds.
        """
        if len(self.worlds) != 1:
            message = f"got {len(self.worlds)} worlds, expected one for a policy over numbers"
            raise ConfigError([Problem("worlds", message, "train one policy for each world")])
        (world,) = self.worlds.values()
        return ControlTrainer(policy, spec.config, world, folder=stage.folder, seed=stage.seed, log=stage.log)

    def fit(self, policy: TeamModel, *inputs: object, **settings: object) -> NoReturn:
        """Raises ConfigError: there is nothing to imitate in numbers here; see `train sequence` for that."""
        _refuse("imitate trajectories; `evolvent train sequence` does that")

    def search(self, policy: TeamModel, *inputs: object, **settings: object) -> NoReturn:
        """Raises ConfigError: searches are over texts."""
        _refuse("be searched with")

    def label(self, policy: TeamModel, *inputs: object, **settings: object) -> NoReturn:
        """Raises ConfigError: labels are of texts."""
        _refuse("label spans of text")

    def save(self, policy: TeamModel, folder: Path) -> None:
        """Saves a policy."""
        save_team(policy, folder)

    def load(self, folder: Path) -> TeamModel:
        """Loads a saved policy exactly."""
        return load_team(folder).to(find_device(self.device))

    def origin(self, policy: TeamModel) -> str:
        """Returns a digest of a policy's shape and weights."""
        digest = hashlib.sha256(canonical_json([repr(policy.shape)]).encode())
        for name, weight in sorted(policy.state_dict().items()):
            digest.update(canonical_json([name, str(weight.dtype), list(weight.shape)]).encode())
            digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()[:24]

    def usage(self) -> Mapping[str, int]:
        """Returns no totals: no tokens are generated."""
        return {}


def _refuse(activity: str) -> NoReturn:
    raise ConfigError(f"a policy over numbers cannot {activity}", hint="use a language policy")


def _to_single_agent(episode: Trajectory, start: Start, stage: str, world: GymnasiumWorld) -> Trajectory:
    """Returns an episode of a team of one as that of the agent: arrays without the team's axis, the world's score."""
    steps = tuple(
        Step(np.asarray(s.observation)[0], np.atleast_1d(np.asarray(s.action)[0]), s.reward) for s in episode.steps
    )
    info = {} if episode.success is None else {"success": episode.success}
    score = episode.score if episode.error else world.score([step.reward for step in steps], info)
    final = np.asarray(episode.final_observation)
    return replace(
        episode,
        id=trajectory_name(start, stage),
        task=start.task,
        sample=start.sample,
        steps=steps,
        final_observation=final[0] if final.ndim > 1 else final,
        score=score,
        meta={},
    )


def _tell_episode(trajectory: Trajectory, world: GymnasiumWorld) -> Trajectory:
    """Returns an episode whose observations and actions are told as text, for people."""
    steps = tuple(
        replace(
            step,
            observation=tell_numbers(world, np.asarray(step.observation)),
            action=tell_action(world, np.asarray(step.action)),
        )
        for step in trajectory.steps
    )
    final = np.asarray(trajectory.final_observation)
    return replace(trajectory, steps=steps, final_observation=tell_numbers(world, final) if final.size else "")


def control_run(
    folder: Path | str,
    world: GymnasiumWorld,
    *,
    seed: int = 0,
    panel: EvaluationPanel | None = None,
    rows: int = 16,
    device: str = "cpu",
) -> Run[TeamModel]:
    """Creates a run of policies over numbers in one world, as `local_run` does for language. Use it in a `with`
    statement.

    Args:
        folder: folder of the run; a run that it holds already is resumed.
        world: the world.
        seed: seed of everything that the run draws.
        panel: tasks of evaluations; None: the defaults.
        rows: episodes that are played side by side in a measurement.
        device: where policies of an earlier session run when a run is resumed.
    """
    backend = ControlBackend({world.name: world}, panel or EvaluationPanel(), rows, device)
    return Run(folder, cast("object", backend), seed=seed, method="python")  # type: ignore[arg-type]
