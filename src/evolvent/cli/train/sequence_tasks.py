"""Tasks of sequence policies: a world and its data, from a file, a mixture, or the maze of pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evolvent.config import Config
from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import JsonObject

if TYPE_CHECKING:
    from evolvent.offline.acting import ArrayActor
    from evolvent.rollout.arrays import ArrayEnv
    from evolvent.store.episodes import Episodes

__all__ = ["SEQUENCE_WORLDS", "SequenceTask", "make_sequence_task"]

SEQUENCE_WORLDS = ("cartpole", "pendulum", "hopper", "stitching")
_REFERENCE_EPISODES = 10  # episodes of random actions, and of the expert, that scores are measured by


@dataclass(frozen=True)
class SequenceTask:
    """The world in which a sequence policy acts, its data, and the returns that define scores of 0 and 100.

    Attributes:
        data: the recorded episodes.
        manifest: JSON values about the data.
        make_env: makes a new environment.
        horizon: maximum steps of an episode.
        action_scale: factor of actions in -1..1.
        random_return: mean return of random actions.
        expert_return: mean return of the expert.
    """

    data: Episodes
    manifest: JsonObject
    make_env: Callable[[], ArrayEnv]
    horizon: int
    action_scale: float
    random_return: float
    expert_return: float

    def play(self, actor: ArrayActor, *, episodes: int, seed: int) -> Episodes:
        """Plays episodes with an actor."""
        from evolvent.rollout.arrays import play_arrays

        return play_arrays(
            actor,
            self.make_env,
            episodes=episodes,
            horizon=self.horizon,
            num_actions=self.data.actions,
            dim=self.data.action_dim,
            seed=seed,
            scale=self.action_scale,
        )

    def normalize_return(self, value: float) -> float:
        """Scales a return to a score: 0 for random actions, 100 for the expert."""
        return 100.0 * (value - self.random_return) / (self.expert_return - self.random_return)


def make_sequence_task(config: Config) -> SequenceTask:
    """Builds the task that the settings of `cli/train/sequence.py` select.

    Raises:
        ConfigError: a mixture that the world does not have, or data of another world. Also the errors of file
            readers.
    """
    return _make_sequence_task(config)


def _make_sequence_task(config: Any) -> SequenceTask:  # the command's class adds `learn`, of the method
    from evolvent.worlds.control import get_control, make_control

    if config.world == "stitching":
        return _make_maze_task(config)
    if config.mixture in ("pieces", "whole"):
        raise ConfigError(
            [
                Problem(
                    "mixture",
                    f"world {config.world} does not have the mixture {config.mixture!r}",
                    "choose random, medium, replay or expert",
                )
            ]
        )
    if config.data is not None and config.mixture is not None:
        raise ConfigError(
            [Problem("mixture", "episodes come from a file, so no mixture is generated", "leave out --mixture")]
        )
    if config.data is not None and not config.data.exists():
        raise ConfigError([Problem("data", f"{config.data} does not exist", "check the path")])
    control = get_control(config.world)
    time_limit = control.horizon
    control = replace(control, horizon=min(control.horizon, config.horizon or control.horizon))
    from evolvent.rollout.mixtures import play_mixture

    make_env, seed = partial(make_control, control), config.learn.seed
    reference_returns = [
        float(play_mixture(control, kind=kind, episodes=_REFERENCE_EPISODES, seed=seed + 1).episodes.returns.mean())
        for kind in ("random", "expert")
    ]
    if reference_returns[0] == reference_returns[1]:  # a score would have no unit
        raise ConfigError(
            [
                Problem(
                    "horizon",
                    (
                        f"random actions and the expert both earn {reference_returns[0]:g} in {control.horizon} "
                        f"steps of {config.world}"
                    ),
                    "set a longer --horizon",
                )
            ]
        )
    if config.data is None:
        played_mixture = play_mixture(control, kind=config.mixture or "replay", episodes=config.episodes, seed=seed)
        data, manifest = played_mixture.episodes, played_mixture.manifest
    else:
        data, manifest = _read_episodes(
            config, scale=config.scale or control.scale, actions=control.actions, horizon=time_limit
        )
        data_shape = (data.observation.shape[1], data.action_dim)
        if data_shape != (control.observation, control.dim):
            message = f"observations and actions of {config.data} have {data_shape} numbers"
            world_shape = (control.observation, control.dim)
            hint = "set --world to the world of the episodes"
            raise ConfigError([Problem("data", f"{message}, but {config.world} has {world_shape}", hint)])
    manifest = {**manifest, "return_random": reference_returns[0], "return_expert": reference_returns[1]}
    return SequenceTask(data, manifest, make_env, control.horizon, control.scale, *reference_returns)


def _make_maze_task(config: Any) -> SequenceTask:
    from evolvent.worlds.stitching import Stitching, StitchingEnv, compute_reachable, demonstrations

    if config.data is not None or config.mixture not in (None, "pieces", "whole"):
        raise ConfigError(
            [Problem("mixture", "the maze has only generated mixtures", "set --mixture to pieces or whole")]
        )
    maze, kind = Stitching(), config.mixture or "pieces"
    data, full_reachability = (
        demonstrations(maze, include_best=kind == "whole"),
        compute_reachable(maze, demonstrations(maze, include_best=True)),
    )
    data_reachability = compute_reachable(maze, data)
    manifest = {
        "world": "stitching",
        "kind": kind,
        "episodes": len(data.lengths),
        "decisions": len(data.reward),
        "digest": data.digest,
        "reachable": {name: getattr(data_reachability, name) for name in data_reachability.__slots__},
        "return_random": 0.0,
        "return_expert": full_reachability.optimum,
    }
    return SequenceTask(data, manifest, partial(StitchingEnv, maze), maze.horizon, 1.0, 0.0, full_reachability.optimum)


def _read_episodes(config: Any, *, scale: float, actions: int, horizon: int) -> tuple[Episodes, dict[str, Any]]:
    from evolvent.store.offline import read_d4rl, read_minari

    problems, unit = list[Problem](), 1.0 if actions else scale
    data = (
        read_minari(config.data, scale=unit, actions=actions, problems=problems)
        if config.data.is_dir()
        else read_d4rl(config.data, scale=unit, actions=actions, horizon=horizon)
    )
    return_statistics = {
        "mean": float(data.returns.mean()),
        "least": float(data.returns.min()),
        "most": float(data.returns.max()),
    }
    return data, {
        "world": config.world,
        "file": str(config.data),
        "episodes": len(data.lengths),
        "decisions": len(data.reward),
        "return": return_statistics,
        "digest": data.digest,
        **({"left_out": [str(problem) for problem in problems]} if problems else {}),
    }
