"""A network that plays a team: observations in, decisions out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.errors import ConfigError, NonFinite
from evolvent.marl.rollout import ArrayRollout, Decision, draw_uniforms
from evolvent.models.team_actions import TeamInputs, TeamModel, TeamShape
from evolvent.worlds.teams.base import Continuous, Discrete, TeamSpec, TeamView

__all__ = ["TeamPolicy", "rollout_actions", "rollout_tensors", "team_shape", "view_tensors"]


def team_shape(spec: TeamSpec, kind: str = "mat", **settings: int | bool) -> TeamShape:
    """Returns the shape of a network that fits a team.

    Args:
        kind, settings: as in `TeamShape` (width, heads, blocks, share, prefix_values).
    Raises:
        ConfigError: the kind or a setting is unknown.
    """
    actions = spec.actions
    sizes: list[int] = []
    if not isinstance(actions, Continuous):
        sizes = [actions.n] if isinstance(actions, Discrete) else list(actions.sizes)
    space = {"sizes": tuple(sizes), "dim": actions.dim if isinstance(actions, Continuous) else 0}
    arguments: dict[str, Any] = {"kind": kind, "agents": spec.agents, "observation": spec.observation}
    arguments["state"] = spec.state if kind in ("mappo", "happo") else 0  # nobody else reads it
    try:
        return TeamShape(**arguments, **space, **settings)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError("invalid team network", value=str(error)) from error


def view_tensors(view: TeamView, device: torch.device | None = None) -> TeamInputs:
    """Converts a view for a network. Masks that restrict nothing (all alive, all available) are left out."""
    return _build_tensors(view.observation, view.alive, view.available, view.state, device)


def rollout_tensors(rollout: ArrayRollout, device: torch.device | None = None) -> TeamInputs:
    """Returns the observations of all `T x E` decisions, step after step."""

    def flatten_axes(array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(-1, *array.shape[2:])

    return _build_tensors(
        flatten_axes(rollout.observation),
        flatten_axes(rollout.alive),
        _apply_optional(flatten_axes, rollout.available),
        _apply_optional(flatten_axes, rollout.state),
        device,
    )


def rollout_actions(rollout: ArrayRollout, device: torch.device | None = None) -> Tensor:
    """Returns the actions of all `T x E` decisions, `[T E, n, K]`; integers, or float32."""
    actions = rollout.actions.reshape(-1, rollout.spec.agents, *rollout.actions.shape[3:])
    actions = actions[..., None] if actions.ndim == 2 else actions
    continuous = isinstance(rollout.spec.actions, Continuous)
    return torch.from_numpy(np.ascontiguousarray(actions, np.float32 if continuous else np.int64)).to(device)


def _apply_optional(
    function: Callable[[NDArray[Any]], NDArray[Any]], array: NDArray[Any] | None
) -> NDArray[Any] | None:
    return None if array is None else function(array)


def _build_tensors(
    observation: NDArray[np.float32],
    alive: NDArray[np.bool_],
    available: NDArray[np.bool_] | None,
    state: NDArray[np.float32] | None,
    device: torch.device | None,
) -> TeamInputs:
    def to_device(array: NDArray[np.generic] | None) -> Tensor | None:
        return None if array is None else torch.from_numpy(np.ascontiguousarray(array)).to(device)

    observation_tensor = to_device(np.asarray(observation, np.float32))
    if observation_tensor is None:
        raise ConfigError("the team has no observations")
    return TeamInputs(
        observation_tensor,
        None if alive.all() else to_device(alive),
        None if available is None or available.all() else to_device(available),
        None if state is None else to_device(np.asarray(state, np.float32)),
    )


@dataclass(frozen=True, slots=True)
class TeamPolicy:
    """A network that decides for teams of a spec: a `TeamPlayer`.

    Args:
        model: of the spec's spaces.
        spec: the team that is played; the number of agents may differ from training.
    """

    model: TeamModel
    spec: TeamSpec

    def act(self, view: TeamView, *, seed: int, greedy: bool = False) -> Decision:
        """Decides in all rows. Raises NonFinite where the network's outputs are not finite: its weights are broken."""
        device = next(self.model.parameters()).device
        num_parts, agents = self.model.shape.parts, self.spec.agents
        if greedy:
            uniform = torch.empty(len(view.number), agents, num_parts)  # not looked at
        else:
            uniform = torch.from_numpy(draw_uniforms(seed, view.number, view.time, agents=agents, parts=num_parts))
        with torch.inference_mode():
            result = self.model.act(view_tensors(view, device), uniform.to(device), greedy=greedy)
        logp, value = (np.asarray(tensor.cpu().numpy(), np.float32) for tensor in (result.logp, result.values))
        if not (np.isfinite(logp[view.alive]).all() and np.isfinite(value[view.alive]).all()):
            raise NonFinite(
                "a team's policy gives numbers that are not finite", hint="go back to an earlier checkpoint"
            )
        actions = result.actions.cpu().numpy()
        return Decision(
            actions=actions[..., 0] if isinstance(self.spec.actions, Discrete) else actions, logp=logp, value=value
        )

    def values(self, view: TeamView) -> NDArray[np.float32]:
        """Returns the critic's values `[E, n]` of a view."""
        with torch.no_grad():
            critic_values = self.model.values(view_tensors(view, next(self.model.parameters()).device))
        return np.asarray(critic_values.cpu().numpy(), np.float32)
