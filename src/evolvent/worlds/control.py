"""Control worlds of Gymnasium, each with an expert given by a formula.

CartPole and Pendulum come with the `control` extra; Hopper with `robots`. Hopper's expert is linear:
"Simple random search provides a competitive approach to reinforcement learning" (arXiv 1803.07055) found its 36 numbers
(`benchmarks/sequence_hopper.py`); it earns about 3,080.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import MissingExtra, boundary, unknown_name_problem

if TYPE_CHECKING:
    import gymnasium

__all__ = ["CONTROLS", "Control", "get_control", "make_control"]

Expert = Callable[[NDArray[np.float32]], NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Control:
    """A control world as offline learning sees it.

    Attributes:
        id: of Gymnasium. observation: O. actions: discrete choices; 0: numbers. dim: D.
        scale: what actions in -1..1 are multiplied with for the world. horizon: steps of an episode.
        expert: `[E, O]` to `[E]` int64 or `[E, D]` float32 in -1..1; None: it has to be trained.
    """

    id: str
    observation: int
    actions: int
    dim: int
    scale: float
    horizon: int
    expert: Expert | None


def _balance_cartpole(observation: NDArray[np.float32]) -> NDArray[Any]:
    """Pushes CartPole to the side to which the pole falls, and gently towards the middle of the track."""
    cart_position, cart_velocity, angle, angular_velocity = observation.T.astype(np.float64)
    push: NDArray[Any] = (angle + 0.25 * angular_velocity + 0.02 * cart_position + 0.05 * cart_velocity > 0).astype(
        np.int64
    )
    return push


def _swing_up_pendulum(observation: NDArray[np.float32]) -> NDArray[Any]:
    """Turns Pendulum upright by pumping energy into it (Astrom and Furuta, Automatica 36, 2000), then holds it
    there.
    """
    upright, side, angular_velocity = observation.T.astype(np.float64)
    angle = np.arctan2(side, upright)
    energy = angular_velocity**2 / 6.0 + 5.0 * upright  # of the rod: length 1, mass 1, g 10; 5 at rest at the top
    pump = np.where(angular_velocity >= 0, 1.0, -1.0) * np.clip(2.0 * (5.0 - energy), -2.0, 2.0)
    hold = -(12.0 * angle + 3.0 * angular_velocity)
    near = (np.abs(angle) < math.pi / 5) & (np.abs(angular_velocity) < 4.0)
    torque: NDArray[Any] = np.clip(np.where(near, hold, pump) / 2.0, -1.0, 1.0).astype(np.float32)[:, None]
    return torque


_HOP = np.array(
    [
        [5.387, -8.221, 24.63, -0.3353, -0.08829, -0.1243, 0.1039, 0.2844, -0.0345, -0.1281, -0.01194],
        [0.4483, -6.404, -0.5273, -1.147, -1.057, -0.3332, 0.09121, -0.3287, -0.2762, -0.1145, 0.004466],
        [3.255, -3.923, -3.881, -0.0443, -0.7927, -0.2971, -0.5398, 0.271, 0.01723, 0.1623, 0.003174],
    ]
)
_HOP_BIAS = np.array([-6.601, -1.002, -3.303])


def _hop(observation: NDArray[np.float32]) -> NDArray[Any]:
    """Computes Hopper's torques with a linear policy that random search found."""
    # not a matrix product: its sums would depend on how many episodes are side by side
    raw_torque = (observation.astype(np.float64)[:, None, :] * _HOP).sum(-1) + _HOP_BIAS
    torque: NDArray[Any] = np.clip(raw_torque, -1.0, 1.0).astype(np.float32)
    return torque


CONTROLS: Mapping[str, Control] = MappingProxyType(
    {
        "cartpole": Control("CartPole-v1", 4, 2, 0, 1.0, 500, _balance_cartpole),
        "pendulum": Control("Pendulum-v1", 3, 0, 1, 2.0, 200, _swing_up_pendulum),
        "hopper": Control("Hopper-v5", 11, 0, 3, 1.0, 1000, _hop),
    }
)
"""The worlds of the published comparisons that run on a processor."""


def get_control(name: str) -> Control:
    """Returns a control world by its name; raises ConfigError with the nearest name for an unknown one."""
    from evolvent.errors import ConfigError

    if name not in CONTROLS:
        raise ConfigError([unknown_name_problem("control world", name, CONTROLS)])
    return CONTROLS[name]


def make_control(control: Control) -> gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]:
    """Creates an environment; raises MissingExtra where Gymnasium or mujoco is not installed."""
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtra("control", f"the world {control.id}") from error
    from evolvent.errors import WorldError

    try:
        with boundary(WorldError, f"{control.id} cannot be made"):
            return gymnasium.make(control.id, disable_env_checker=True)
    except WorldError as error:
        if isinstance(error.__cause__, gymnasium.error.DependencyNotInstalled):
            raise MissingExtra("robots", f"the world {control.id}") from error
        raise
