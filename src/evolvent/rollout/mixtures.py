"""Offline data made here: mixtures of behaviours of known quality, with their seeds, and a manifest that says so.

The four kinds are D4RL's (arXiv 2004.07219) with a scripted or trained expert and noise in place of checkpoints:
`random` draws actions evenly; `expert` is the expert with 2 % of its actions random, `medium` with many random, so that
it earns some third to a half; `replay` is what a learner leaves behind: the share of random actions falls from all to
medium's. A mixture is a function of its settings alone, episode by episode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError
from evolvent.rollout.arrays import ArrayEnv, play
from evolvent.store.episodes import Episodes
from evolvent.trajectory import sample_rng
from evolvent.worlds.control import Control, make_control

__all__ = ["KINDS", "Kind", "Mixture", "mixture"]

Kind = Literal["random", "medium", "replay", "expert"]
KINDS: tuple[Kind, ...] = ("random", "medium", "replay", "expert")
_EXPERT = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Episodes, and what is to be known of them as JSON values: kind, seed, shares, returns, a digest."""

    episodes: Episodes
    manifest: dict[str, Any]


def mixture(
    control: Control,
    *,
    kind: Kind,
    episodes: int,
    seed: int,
    medium: float = 0.4,
    make: Callable[[], ArrayEnv] | None = None,
) -> Mixture:
    """Play a mixture.

    Args:
        control: the world and its expert (`dataclasses.replace` gives it a trained one).
        medium: the share of random actions of medium. make: a new environment; None: the control's own.
    Raises:
        ConfigError: no such kind, a share outside 0..1, a world without expert. What `play` raises.
    """
    expert, actions = control.expert, control.actions
    if expert is None:
        raise ConfigError("this world has no scripted expert", value=control.id, hint="hand in a trained one")
    if kind not in KINDS:
        raise ConfigError("no such mixture", value=kind, expected=KINDS)
    if not 0.0 <= medium <= 1.0:
        raise ConfigError("no share of random actions", value=medium, expected="0..1")
    fixed = {"random": 1.0, "medium": medium, "expert": _EXPERT}
    shares = np.linspace(1.0, medium, episodes) if kind == "replay" else np.full(episodes, fixed[kind])
    share: dict[int, float] = {}

    def act(history: Any) -> NDArray[Any]:
        if not history.step:
            share.update(zip(history.seed.tolist(), shares.tolist(), strict=True))
        chosen = np.array(expert(history.observation[:, -1]))
        for row, number in enumerate(history.seed.tolist()):
            rng = sample_rng("mixture", number, history.step)
            if rng.random() < share[number]:
                chosen[row] = rng.integers(actions) if actions else rng.uniform(-1.0, 1.0, chosen.shape[1])
        return chosen

    played = play(
        act,
        make or partial(make_control, control),
        episodes=episodes,
        horizon=control.horizon,
        actions=actions,
        seed=seed,
        dim=control.dim,
        scale=control.scale,
    )
    returns = played.returns
    spread = {"mean": float(returns.mean()), "least": float(returns.min()), "most": float(returns.max())}
    manifest = {
        "world": control.id,
        "kind": kind,
        "seed": seed,
        "episodes": episodes,
        "horizon": control.horizon,
        "decisions": len(played.reward),
        "random_share": [float(shares[0]), float(shares[-1])],
        "return": spread,
        "digest": played.digest,
    }
    return Mixture(played, manifest)
