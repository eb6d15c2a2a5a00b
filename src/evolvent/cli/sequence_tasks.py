"""Where a sequence policy acts, and what it learns from: episodes of a file, a mixture, or the maze of pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evolvent.errors import ConfigError, Problem

if TYPE_CHECKING:
    from evolvent.offline.acting import ArrayActor
    from evolvent.store.episodes import Episodes

__all__ = ["SEQUENCE_WORLDS", "Place", "place_of"]

SEQUENCE_WORLDS = ("cartpole", "pendulum", "hopper", "stitching")
_REFERENCES = 10  # episodes of random actions, and of the expert, that scores are measured by


@dataclass(frozen=True)
class Place:
    """Where a policy acts, what it learns from, and what 0 and 100 of a score are.

    Attributes:
        manifest: JSON values about the data. make: a new environment. horizon: steps of an episode. scale: what actions
            in -1..1 are multiplied with. random, expert: mean returns.
    """

    data: Episodes
    manifest: dict[str, Any]
    make: Callable[[], Any]
    horizon: int
    scale: float
    random: float
    expert: float

    def played(self, actor: ArrayActor, *, episodes: int, seed: int) -> Episodes:
        """Episodes of an actor."""
        from evolvent.rollout.arrays import play

        return play(
            actor,
            self.make,
            episodes=episodes,
            horizon=self.horizon,
            actions=self.data.actions,
            dim=self.data.dim,
            seed=seed,
            scale=self.scale,
        )

    def score(self, value: float) -> float:
        """0 for random actions, 100 for the expert."""
        return 100.0 * (value - self.random) / (self.expert - self.random)


def place_of(config: Any) -> Place:
    """The world, its data, and what its scores are measured by, as the settings of `cli/train_sequence.py` say.

    Raises:
        ConfigError: a mixture that the world has not, data of another world. What the readers of files raise.
    """
    from evolvent.worlds.control import control_named, make_control

    if config.world == "stitching":
        return _maze(config)
    if config.mixture in ("pieces", "whole"):
        raise ConfigError(
            [Problem("mixture", f"{config.world} has no {config.mixture}", "give random, medium, replay or expert")]
        )
    if config.data is not None and config.mixture is not None:
        raise ConfigError([Problem("mixture", "episodes come from a file, none are made", "leave out --mixture")])
    control = control_named(config.world)
    control = replace(control, horizon=min(control.horizon, config.horizon or control.horizon))
    from evolvent.rollout.mixtures import mixture

    make, seed = partial(make_control, control), config.learn.seed
    ends = [
        float(mixture(control, kind=kind, episodes=_REFERENCES, seed=seed + 1).episodes.returns.mean())
        for kind in ("random", "expert")
    ]
    if ends[0] == ends[1]:  # a score would have no unit
        raise ConfigError(
            [
                Problem(
                    "horizon",
                    f"random actions and the expert both earn {ends[0]:g} in {control.horizon} steps of {config.world}",
                    "give a longer one",
                )
            ]
        )
    if config.data is None:
        found = mixture(control, kind=config.mixture or "replay", episodes=config.episodes, seed=seed)
        data, manifest = found.episodes, found.manifest
    else:
        data, manifest = _read(config, scale=config.scale or control.scale, actions=control.actions)
        own = (data.observation.shape[1], data.dim)
        if own != (control.observation, control.dim):
            what = f"{config.data} holds observations and actions of {own} numbers"
            wanted = (control.observation, control.dim)
            raise ConfigError([Problem("data", what, f"{config.world} has {wanted}: name their world")])
    manifest = {**manifest, "return_random": ends[0], "return_expert": ends[1]}
    return Place(data, manifest, make, control.horizon, control.scale, *ends)


def _maze(config: Any) -> Place:
    from evolvent.worlds.stitching import Stitching, StitchingEnv, demonstrations, reachable

    if config.data is not None or config.mixture not in (None, "pieces", "whole"):
        raise ConfigError([Problem("mixture", "the maze has pieces or whole ways, made here", "give pieces or whole")])
    maze, kind = Stitching(), config.mixture or "pieces"
    data, ends = demonstrations(maze, whole=kind == "whole"), reachable(maze, demonstrations(maze, whole=True))
    found = reachable(maze, data)
    manifest = {
        "world": "stitching",
        "kind": kind,
        "episodes": len(data.lengths),
        "decisions": len(data.reward),
        "digest": data.digest,
        "reachable": {name: getattr(found, name) for name in found.__slots__},
        "return_random": 0.0,
        "return_expert": ends.optimum,
    }
    return Place(data, manifest, partial(StitchingEnv, maze), maze.horizon, 1.0, 0.0, ends.optimum)


def _read(config: Any, *, scale: float, actions: int) -> tuple[Episodes, dict[str, Any]]:
    from evolvent.store.offline import read_d4rl, read_minari

    read = read_minari if config.data.is_dir() else read_d4rl
    data = read(config.data, scale=1.0 if actions else scale, actions=actions)
    spread = {"mean": float(data.returns.mean()), "least": float(data.returns.min()), "most": float(data.returns.max())}
    return data, {
        "world": config.world,
        "file": str(config.data),
        "episodes": len(data.lengths),
        "decisions": len(data.reward),
        "return": spread,
        "digest": data.digest,
    }
