"""Generated offline data: mixtures of behaviors of known quality, with seeds and a manifest.

The four kinds are D4RL's (arXiv 2004.07219) with a scripted or trained expert and noise instead of checkpoints:
`random` draws actions uniformly; `expert` is the expert with 2 % random actions, `medium` with many random
ones, so that it earns a third to a half; `replay` imitates a learner's replay buffer: the share of random
actions falls from all to medium's. A mixture is a function of its settings alone, episode by episode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError
from evolvent.rollout.arrays import ArrayEnv, play_arrays
from evolvent.store.episodes import Episodes
from evolvent.trajectory import JsonObject, sample_rng
from evolvent.worlds.control import Control, make_control

__all__ = ["KINDS", "Kind", "Mixture", "play_mixture"]

Kind = Literal["random", "medium", "replay", "expert"]
KINDS: tuple[Kind, ...] = ("random", "medium", "replay", "expert")
_EXPERT = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Episodes, and their metadata as JSON values: kind, seed, shares, returns, a digest."""

    episodes: Episodes
    manifest: JsonObject


def play_mixture(
    control: Control,
    *,
    kind: Kind,
    episodes: int,
    seed: int,
    medium: float = 0.4,
    make: Callable[[], ArrayEnv] | None = None,
) -> Mixture:
    """Plays a mixture.

    Args:
        control: The world and its expert (`dataclasses.replace` gives it a trained one).
        kind: Kind of the mixture.
        episodes: Number of episodes.
        seed: Seed of all episodes.
        medium: Share of random actions of medium.
        make: Creates an environment; None: the control's own.
    Raises:
        ConfigError: an unknown kind, a share outside 0..1, a world without an expert. Errors of `play`.
    """
    expert, actions = control.expert, control.actions
    if expert is None:
        raise ConfigError("the world has no scripted expert", value=control.id, hint="pass a trained expert")
    if kind not in KINDS:
        raise ConfigError("unknown mixture", value=kind, expected=KINDS)
    if not 0.0 <= medium <= 1.0:
        raise ConfigError("ratio of random actions out of range", value=medium, expected="0..1")
    fixed = {"random": 1.0, "medium": medium, "expert": _EXPERT}
    shares = np.linspace(1.0, medium, episodes) if kind == "replay" else np.full(episodes, fixed[kind])
    share_by_seed: dict[int, float] = {}

    def act(history: Any) -> NDArray[Any]:
        if not history.step:
            share_by_seed.update(zip(history.seed.tolist(), shares.tolist(), strict=True))
        chosen_actions = np.array(expert(history.observation[:, -1]))
        for row, number in enumerate(history.seed.tolist()):
            rng = sample_rng("mixture", number, history.step)
            if rng.random() < share_by_seed[number]:
                chosen_actions[row] = (
                    rng.integers(actions) if actions else rng.uniform(-1.0, 1.0, chosen_actions.shape[1])
                )
        return chosen_actions

    data = play_arrays(
        act,
        make or partial(make_control, control),
        episodes=episodes,
        horizon=control.horizon,
        num_actions=actions,
        seed=seed,
        dim=control.dim,
        scale=control.scale,
    )
    returns = data.returns
    spread = {"mean": float(returns.mean()), "least": float(returns.min()), "most": float(returns.max())}
    manifest = {
        "world": control.id,
        "kind": kind,
        "seed": seed,
        "episodes": episodes,
        "horizon": control.horizon,
        "decisions": len(data.reward),
        "random_share": [float(shares[0]), float(shares[-1])],
        "return": spread,
        "digest": data.digest,
    }
    return Mixture(data, manifest)
